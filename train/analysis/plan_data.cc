#include "train/analysis/plan_data.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "core/error.h"
#include "core/memory.h"

namespace lathe {

RunData open_for_plan(LoadedConfig loaded) {
  const RunConfig& c = loaded.config;
  const bool tokens = find_model_kind(c.model.kind)->models_tokens();
  if (fs::is_directory(c.data.dir) || !tokens) return RunData::open(std::move(loaded));
  if (batch_sizes(c).vocab_size == 0) {
    fail(Exit::usage, "model.vocab_size is 0 and there is no data in ", c.data.dir,
         " to take it from; set model.vocab_size or data.dir");
  }
  const Task& task = task_of(loaded, {.task = "language"});
  return {.loaded = resolve_frozen(std::move(loaded), task, {}),
          .data = nullptr,
          .task = &task,
          .sizes = {}};
}

DummyLoader::DummyLoader(const RunConfig& c, const Data* data, uint64_t seed, at::Device device) {
  const MemoryScope scope(Memory::data);
  const BatchSizes sizes = batch_sizes(c);
  const int64_t slots = c.data.prefetch + c.data.workers;
  if (data != nullptr) source_ = data->training(sizes, seed);
  for (int64_t i = 0; i < slots; ++i) {
    std::vector<at::Tensor> buffers;
    if (source_) {
      for (const at::Tensor& t : source_->make_buffers()) buffers.push_back(t.zero_().to(device));
    } else {
      buffers.push_back(at::zeros({sizes.batch_size, sizes.block_size + 1}, at::kLong).to(device));
    }
    ring_.push_back(std::move(buffers));
  }
}

Batch DummyLoader::next() {
  const auto& buffers = ring_[at_++ % ring_.size()];
  if (source_) return source_->batch_of(buffers);
  const int64_t length = buffers[0].size(1) - 1;
  return {buffers[0].narrow(1, 0, length), buffers[0].narrow(1, 1, length)};
}

LoadedConfig reduce_for_dry_run(LoadedConfig loaded) {
  loaded.config.train.eval_interval = 0;
  loaded.config.train.detect_anomaly = false;  // a dry run has no values to inspect
  // Memory and time do not depend on the weights.
  loaded.source.clear();
  loaded.frozen.clear();
  loaded.config.train.device = "cpu";
  loaded.config.amp.tf32 = false;
  return loaded;
}

}  // namespace lathe
