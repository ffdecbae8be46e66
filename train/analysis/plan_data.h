// The data and the config that plans and dry runs use in place of those of a run.
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

/// A loader whose batches have the right shapes and arbitrary values; their ring of buffers is made
/// once.
class DummyLoader {
 public:
  /// `data` is null for token data that is missing.
  DummyLoader(const RunConfig& config, const Data* data, uint64_t seed, at::Device device);
  /// Returns the next batch. Its buffers are used again after data.prefetch + data.workers calls.
  Batch next();

 private:
  std::unique_ptr<TrainingBatches> source_;
  std::vector<std::vector<at::Tensor>> ring_;
  size_t at_ = 0;
};

/// Returns the config reduced to what the memory and the time of one step depend on.
LoadedConfig reduce_for_dry_run(LoadedConfig loaded);

}  // namespace lathe
