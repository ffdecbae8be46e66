// Declares functions that find and load the base model of adapters, create adapters, and merge them
// into the base.
#pragma once

#include <optional>
#include <string>

#include "train/config/run_config.h"
#include "train/config/transform.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

/// Holds the keys of [adapters].
struct AdaptersConfig {
  LATHE_FIELD(
      int64_t, rank, 0,
      "Rank of the adapters, which are added to the linear layers that adapters.layers selects. "
      "Only the adapters are trained, on the frozen model of adapters.base. 0: no adapters.",
      between(0, 10000).fixed())
  LATHE_FIELD(double, alpha, 16.0,
              "Scale of the adapters: their output is multiplied by alpha / rank.",
              above(0, 1000000).fixed())
  LATHE_FIELD(std::string, layers, "",
              "Linear layers that get adapters, as comma-separated patterns of their paths, for "
              "example blocks.*.attn.q,*.mlp.down. Empty: all linear layers in the model's blocks, "
              "or in the whole model if it has no blocks.",
              anything().list().fixed())
  LATHE_FIELD(bool, dora, false,
              "Whether adapters also train the norm of each row of the adapted weights (DoRA, Liu "
              "et al. 2024).",
              anything().fixed())
  LATHE_FIELD(
      std::string, base, "",
      "Run or checkpoint whose model the adapters are trained on. All keys of [model] except "
      "dropout are taken from it.",
      anything().fixed())
  LATHE_FIELD(std::string, dtype, "fp32",
              "Dtype of the frozen model. int8 and nf4 quantize the linear layers of its blocks "
              "and keep the other matrices in amp.dtype.",
              one_of({"fp32", "bf16", "fp16", "int8", "nf4"}).fixed())
  LATHE_FIELD(bool, double_quant, false,
              "nf4: also quantize the scales to 8 bits (double quantization).", anything().fixed())
};
/// Returns [adapters] of a config.
const AdaptersConfig& adapters_of(const RunConfig& config);

/// Implements the transform "adapters": if adapters.rank is above 0, adds adapters with initial
/// values to the linear layers that adapters.layers selects. Throws Exit::usage if a pattern
/// matches no layer.
void add_adapters(Model& model, const TransformContext& context);
/// Returns the first fault in the keys of [adapters]; nullopt if there is none.
std::optional<ConfigFault> check_adapters(const RunConfig& config);

/// Returns the checkpoint that adapters.base names. Throws Exit::checkpoint if there is no such
/// checkpoint.
fs::path find_base(const RunConfig& config);
/// Finds the base that adapters.base names, and returns the config with the base's path and
/// [model]. Returns a config without adapters unchanged. Throws Exit::usage if a given key of
/// [model] differs from the base's key, or if the base has adapters.
LoadedConfig resolve_adapter_base(LoadedConfig loaded);
/// Throws Exit::data if the tokenizer of the data differs from the tokenizer of the base. Does
/// nothing if there is no base.
void check_base_tokenizer(const LoadedConfig& loaded, const Data& data);
/// Loads the frozen base of a config with adapters, in the format that adapters.dtype names. With
/// dist.tensor, loads only this tensor rank's part of the base.
std::unique_ptr<Model> load_base(const fs::path& base, const RunConfig& config,
                                 const ModelSizes& sizes, at::Device device);
/// Returns the checksum that identifies the weights of a base (model_id()); "" if there is no base.
std::string base_hash(const fs::path& base);
/// Throws Exit::checkpoint if base_hash() of the base is not `hash`, which identifies the base that
/// the adapters were trained on.
void check_base(const fs::path& base, const RunConfig& config, const std::string& hash);

/// Merges the adapters of a run into their base. If `average` is true, merges the moving averages
/// of the adapters instead. Writes the result, without optimizer state, as a separate run in `out`,
/// which can be evaluated, generate text, and be the base of other adapters. If the run has no
/// adapters and its checkpoint has a file for each process, instead writes the same state with
/// complete tensors, so that the new run can be resumed. Returns the new checkpoint. `out` is
/// created completely or not at all. Throws Exit::usage if `out` is not empty, if the run has
/// nothing to merge, or if `average` is true and the run keeps no averages of adapters. Throws
/// Exit::busy if another process is writing `out`. `stop` is called before each layer or tensor; if
/// it returns true, the merge ends with Exit::stopped.
fs::path merge(const fs::path& run, const fs::path& out, bool average,
               const StopAsked& stop = nullptr);

}  // namespace lathe
