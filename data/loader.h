// Batches, ahead of time. Worker threads fill a fixed ring of host buffers; a batch is a function
// of (seed, step), so their number never changes what is trained on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/batch_plan.h"
#include "data/data.h"

namespace lathe {

/// Training micro-batches in order, from a given one on. Buffers are pinned and copied
/// asynchronously for CUDA.
class Loader {
 public:
  /// Begins with the micro-batch that `plan` numbers `first`. Throws Exit::memory where a worker
  /// can't be started. The data must outlive it.
  Loader(const Data& data, const BatchSizes& sizes, uint64_t seed, int64_t first,
         const DataConfig& config, at::Device device, const BatchPlan& plan = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next micro-batch, which is valid until the next call. Throws the error of a
  /// worker.
  Batch next();
  /// Returns how many targets of a micro-batch are learned; nullopt if it is the number of its
  /// units. `micro_batch` counts the micro-batches of all steps and processes.
  std::optional<int64_t> targets(int64_t micro_batch) const {
    return batches_->targets(micro_batch);
  }
  /// Seconds that the last next() waited for data.
  double waited() const { return waited_; }

 private:
  struct Slot {
    std::vector<at::Tensor> buffers;
    int64_t holds = -1;  // which micro-batch, once filled
    std::exception_ptr error;
    std::optional<c10::Event>
        copied;  // CUDA: when the copy to the device is through, so the buffer may be refilled
  };
  void work(int worker);
  void end_workers();
  Slot& slot_of(int64_t micro_batch) {
    return slots_[static_cast<size_t>(micro_batch) % slots_.size()];
  }

  std::unique_ptr<TrainingBatches> batches_;
  at::Device device_;
  BatchPlan plan_;
  std::vector<Slot> slots_;  // micro-batch n lives in slot n % size
  int64_t next_fill_, next_batch_;
  bool stop_ = false;
  double waited_ = 0;
  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::vector<std::thread> workers_;
};

/// Returns the `n` training micro-batches from number `first` on. The calling thread makes them,
/// each in separate memory.
std::vector<Batch> draw_batches(const Data& data, const BatchSizes& sizes, uint64_t seed,
                                int64_t first, int64_t n, at::Device device);

}  // namespace lathe
