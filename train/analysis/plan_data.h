// Substitutes for a run's data and config, which plans and dry runs use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Opens the data of a config, as RunData::open() does. Token data may be missing if
/// model.vocab_size is given; `data` of the result is null then. Throws Exit::usage if both are
/// missing.
RunData open_for_plan(LoadedConfig loaded);

/// A loader whose batches have the right shapes and arbitrary values. It allocates a ring of
/// buffers once and cycles through it.
class DummyLoader {
 public:
  /// `data` may be null for a config of token data whose folder is missing.
  DummyLoader(const RunConfig& config, const Data* data, uint64_t seed, at::Device device);
  /// Returns the next batch. Its buffers are reused after data.prefetch + data.workers calls.
  Batch next();

 private:
  std::unique_ptr<TrainingBatches> source_;
  std::vector<std::vector<at::Tensor>> ring_;
  size_t at_ = 0;
};

/// Returns the config for a dry run on the CPU, without the settings that the memory and the time
/// of a step do not depend on, such as evaluations and sources of weights.
LoadedConfig reduce_for_dry_run(LoadedConfig loaded);

}  // namespace lathe
