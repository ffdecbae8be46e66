// Prepares batches ahead of time. Worker threads fill a fixed ring of host buffers. A batch is a
// function of (seed, step), so the number of workers never changes the training data.
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
  /// Starts with micro-batch `first` of this process, in the numbering of `plan`. Throws
  /// Exit::memory if a worker thread can't be started. `data` must outlive the loader.
  Loader(const Data& data, const BatchSizes& sizes, uint64_t seed, int64_t first,
         const DataConfig& config, at::Device device, const BatchPlan& plan = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next micro-batch, which is valid until the next call. Throws the error of a
  /// worker.
  Batch next();
  /// Returns how many targets of a micro-batch count toward the loss; nullopt if all of them do.
  /// `micro_batch` counts the micro-batches of all steps and processes.
  std::optional<int64_t> targets(int64_t micro_batch) const {
    return batches_->targets(micro_batch);
  }
  /// Returns the seconds that the last call of next() waited for data.
  double waited() const { return waited_; }

 private:
  struct Slot {
    std::vector<at::Tensor> buffers;
    int64_t micro_batch = -1;  // in `buffers`; -1 before the first fill
    std::exception_ptr error;
    // CUDA: recorded after the copy to the device. The buffers may be refilled once it has passed.
    std::optional<c10::Event> copied;
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
