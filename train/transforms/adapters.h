// Adapters: the model that a config puts them on, adding them, and merging them into it.
#pragma once

#include <optional>
#include <string>

#include "train/config/run_config.h"
#include "train/config/transform.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

struct AdaptersConfig {
  LATHE_FIELD(int64_t, rank, 0,
              "rank of low-rank adapters on the linear layers of the model's blocks (of the whole "
              "model where it has "
              "none); they alone are trained, on the frozen model of adapters.base. 0: none",
              between(0, 10000).fixed())
  LATHE_FIELD(double, alpha, 16.0, "adapters count alpha / rank times", above(0, 1000000).fixed())
  LATHE_FIELD(std::string, base, "",
              "run or checkpoint under the adapters; gives the keys of [model], but for dropout",
              anything().fixed())
  LATHE_FIELD(std::string, dtype, "fp32",
              "how the model under the adapters is kept; int8, nf4: its blocks' linear layers, the "
              "rest in amp.dtype",
              one_of({"fp32", "bf16", "fp16", "int8", "nf4"}).fixed())
  LATHE_FIELD(bool, double_quant, false, "nf4: the scales in 8 bits too", anything().fixed())
};
/// [adapters] of a config.
const AdaptersConfig& adapters_of(const RunConfig& config);

/// The transform: adapters on the linear layers of the model's blocks where the config asks for
/// them, with initial values, and its rule.
void add_adapters(Model& model, const TransformContext& context);
std::optional<ConfigFault> check_adapters(const RunConfig& config);

/// The checkpoint that adapters.base stands for; Exit::checkpoint where there is none.
fs::path find_base(const RunConfig& config);
/// Finds a config's adapters.base, where it has adapters, and takes [model] from it. Exit::usage
/// where a key was given otherwise.
void resolve_adapter_base(LoadedConfig& loaded);
/// As check_tokenizer, against the base under a config's adapters.
void check_base_tokenizer(const LoadedConfig& loaded, const Data& data);
/// The frozen base under a config's adapters, as it is kept.
std::unique_ptr<Model> load_base(const fs::path& base, const RunConfig& config,
                                 const ModelSizes& sizes, at::Device device);
/// What tells one base from another: the checksum of its model.safetensors; "" without a base.
std::string base_hash(const fs::path& base);
/// Exit::checkpoint where the base is not the one that adapters were trained on.
void check_base(const fs::path& base, const RunConfig& config, const std::string& hash);

/// Writes the model of a run with adapters, adapters merged into it, as a run of its own in `out`:
/// for eval, generate, and as a base; without optimizer state. Returns the checkpoint. `out` is
/// made, whole or not at all; Exit::usage where it holds anything, Exit::busy where another process
/// writes it. `stop` is called after each layer; true ends the merge with Exit::stopped.
fs::path merge(const fs::path& run, const fs::path& out, const StopAsked& stop = nullptr);

}  // namespace lathe
