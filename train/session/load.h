// Models from checkpoints, for evaluating them and writing text.
#pragma once

#include <memory>
#include <string>

#include "amp/amp.h"
#include "nn/models/model.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// A checkpoint's model, ready to compute.
struct LoadedModel {
  RunState state;
  RunConfig config;
  at::Device device{at::kCPU};
  std::unique_ptr<Model> model;
  Compute compute;
  std::string saved_dtype, load_dtype;  ///< of matrices: in the file, and in memory as in Keep
  int64_t weight_bytes = 0;             ///< of what holds the weights
  int64_t loading_peak_bytes = 0;       ///< peak of the tensors while they were loaded

  /// `dtype` as in Keep, or "" for the run's own; `which` as in find_checkpoint; `average`: the
  /// moving average of the weights (optim.ema_decay) in their place. Opens the device and sets
  /// threads. A running process may delete the checkpoint meanwhile: then its next one is opened.
  static LoadedModel open(const fs::path& run, const std::string& device, int threads,
                          const std::string& dtype, bool double_quant,
                          const std::string& which = "newest", bool average = false);
};

}  // namespace lathe
