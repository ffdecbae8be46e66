// Prefetched batches. Worker threads fill a fixed ring of host buffers. A batch is a function of
// (seed, step), so the number of workers never changes the training.
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

#include "data/data.h"

namespace lathe {

/// Training micro-batches in order, starting at a given one. For CUDA the buffers are pinned and
/// copied asynchronously.
class Loader {
 public:
  /// Throws Exit::memory where a worker can't be started. The data must outlive the loader.
  Loader(const Data& data, const BatchSizes& sizes, uint64_t seed, int64_t first_micro_batch,
         const DataConfig& config, at::Device device);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next micro-batch, valid until the next call. Rethrows an error of a worker.
  Batch next();
  /// Returns how many targets of a micro-batch are learned; nullopt where all units are.
  std::optional<int64_t> targets(int64_t micro_batch) const {
    return batches_->targets(micro_batch);
  }
  /// Returns the seconds that the last next() waited for data.
  double waited() const { return waited_; }

 private:
  struct Slot {
    std::vector<at::Tensor> buffers;
    int64_t holds = -1;  // the micro-batch, once filled
    std::exception_ptr error;
    // CUDA: recorded behind the copy to the device, after which the buffer may be refilled.
    std::optional<c10::Event> copied;
  };
  void work(int worker);
  void end_workers();
  Slot& slot_of(int64_t micro_batch) {
    return slots_[static_cast<size_t>(micro_batch) % slots_.size()];
  }

  std::unique_ptr<TrainingBatches> batches_;
  at::Device device_;
  std::vector<Slot> slots_;  // micro-batch n lives in slot n % size
  int64_t next_fill_, next_batch_;
  bool stop_ = false;
  double waited_ = 0;
  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::vector<std::thread> workers_;
};

/// Returns training micro-batches first, first + 1, ... (`n` of them), made by the calling thread,
/// each in separate memory.
std::vector<Batch> draw_batches(const Data& data, const BatchSizes& sizes, uint64_t seed,
                                int64_t first, int64_t n, at::Device device);

}  // namespace lathe
