// Prepares batches ahead of time. Worker threads fill a fixed ring of host buffers. A micro-batch
// depends only on the seed and its index, so the number of workers never changes the training data.
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

/// Returns training micro-batches in order, beginning with a given index. For CUDA, buffers are
/// pinned and copied asynchronously.
class Loader {
 public:
  /// Starts the workers. `plan` decides which micro-batches this process computes; the loader
  /// begins with number `first` of these, counted from 0. If data.workers is 0, there are no
  /// workers, and next() prepares each micro-batch itself. Throws Exit::memory if a worker thread
  /// can't be started. `data` must outlive the loader.
  Loader(const Data& data, const BatchSizes& sizes, uint64_t seed, int64_t first,
         const DataConfig& config, at::Device device, const BatchPlan& plan = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next micro-batch, which is valid until the next call. Throws the error that
  /// occurred in the worker that prepared this micro-batch.
  Batch next();
  /// Returns how many targets of a micro-batch count toward the loss; nullopt if all of them do.
  /// `micro_batch` is an index among the micro-batches of all steps and processes.
  std::optional<int64_t> targets(int64_t micro_batch) const {
    return batches_->targets(micro_batch);
  }
  /// Returns the seconds that the last call of next() waited for data.
  double waited() const { return waited_; }

 private:
  struct Slot {
    std::vector<at::Tensor> buffers;
    int64_t micro_batch = -1;  // index of the micro-batch in `buffers`; -1 before the first fill
    std::exception_ptr error;
    // CUDA: the event recorded after the copy to the device. Once the event has completed, the
    // buffers may be refilled.
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
  std::vector<Slot> slots_;  // micro-batch n is in slot n % size
  int64_t next_fill_, next_batch_;
  bool stop_ = false;
  double waited_ = 0;
  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::vector<std::thread> workers_;
};

/// Returns `n` training micro-batches, beginning with number `first`. The calling thread prepares
/// them, each in separate memory.
std::vector<Batch> draw_batches(const Data& data, const BatchSizes& sizes, uint64_t seed,
                                int64_t first, int64_t n, at::Device device);

}  // namespace lathe
