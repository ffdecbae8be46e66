// Provides substitutes for a run's data and config, for plans and dry runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Opens the data of a config, as RunData::open() does. The data of a token model may be missing if
/// model.vocab_size is given; then `data` of the result is null. Throws Exit::usage if both are
/// missing.
RunData open_for_plan(LoadedConfig loaded);

/// A loader whose batches have the right shapes and arbitrary values. It allocates a ring of
/// buffers once and cycles through it.
class DummyLoader {
 public:
  /// `data` may be null if the config is for token data and its folder is missing.
  DummyLoader(const RunConfig& config, const Data* data, uint64_t seed, at::Device device);
  /// Returns the next batch. Its buffers are reused after data.prefetch + data.workers further
  /// calls.
  Batch next();

 private:
  std::unique_ptr<TrainingBatches> source_;
  std::vector<std::vector<at::Tensor>> ring_;
  size_t at_ = 0;
};

/// Returns the config for a dry run on the CPU. Resets the settings that do not affect the memory
/// and the time of a step, such as evaluations and sources of weights.
LoadedConfig reduce_for_dry_run(LoadedConfig loaded);

}  // namespace lathe
