// Models from checkpoints: for evaluating and writing text, and frozen under adapters.
#pragma once

#include <string>

#include "data/manifest.h"
#include "nn/models/gpt.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// How frozen weights are kept in memory. "fp32", "bf16", "fp16": every matrix in that dtype. "int8", "nf4": the
/// blocks' linear layers in that format, the other matrices in `rest`. Vectors stay in float32.
struct Keep {
  std::string dtype = "fp32";
  bool double_quant = false;  ///< nf4: the scales in 8 bits too
  at::ScalarType rest = at::kBFloat16;
};

/// A model of `config` with a checkpoint's frozen parameters, read and converted one at a time, so that they never are
/// in float32 all at once; adapters, where the config has them, are zeros and trained.
GPT load_frozen(const fs::path& checkpoint, const ModelConfig& config, const Keep& keep, at::Device device);

/// Exit::data where a data folder was made with another tokenizer or vocabulary than what a checkpoint was trained on.
void check_tokenizer(const fs::path& data, const std::optional<DataManifest>& manifest, const RunState& state);

/// A checkpoint's model, ready to compute.
struct LoadedModel {
  RunState state;
  RunConfig config;
  at::Device device{at::kCPU};
  GPT model;
  Compute compute;
  std::string saved_dtype, load_dtype;  ///< of matrices: in the file, and in memory as in Keep
  int64_t weight_bytes = 0;             ///< of what holds the weights
  int64_t loading_peak_bytes = 0;       ///< the most that tensors took while they were loaded

  /// `dtype` as in Keep, or "" for the run's own; `which` as in find_checkpoint. Opens the device and sets threads. A
  /// run under way may delete the checkpoint meanwhile: then its next one is taken.
  static LoadedModel open(const fs::path& run, const std::string& device, int threads, const std::string& dtype,
                          bool double_quant, const std::string& which = "newest");
};

}  // namespace lathe
