// Declares a loader of models from checkpoints, for evaluation and text generation.
#pragma once

#include <memory>
#include <string>

#include "amp/amp.h"
#include "nn/models/model.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Holds a checkpoint's model, ready to compute.
struct LoadedModel {
  RunState state;
  RunConfig config;
  at::Device device{at::kCPU};
  std::unique_ptr<Model> model;
  Compute compute;
  std::string saved_dtype,
      load_dtype;            ///< dtypes of matrices in the file and in memory (see FrozenFormat)
  int64_t weight_bytes = 0;  ///< memory of the weights, in bytes
  int64_t loading_peak_bytes = 0;  ///< peak memory of the tensors while they were loaded, in bytes

  /// Opens the device, sets the number of threads and loads a checkpoint of the run. `dtype` and
  /// `double_quant` are the members of FrozenFormat; if `dtype` is "", the value of adapters.dtype
  /// is used for a run with adapters, and "fp32" for other runs. `which` is the parameter of
  /// find_checkpoint(). If `average` is true, loads the moving average of the weights
  /// (optim.ema_decay) instead of the weights. If a training process deletes the checkpoint while
  /// this function loads it, loads a newer checkpoint.
  static LoadedModel open(const fs::path& run, const std::string& device, int threads,
                          const std::string& dtype, bool double_quant,
                          const std::string& which = "newest", bool average = false);
};

}  // namespace lathe
