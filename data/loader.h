// Batches, ahead of time. Worker threads fill a fixed ring of host buffers; a batch is a function of (seed, step), so
// their number never changes what is trained on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/config.h"
#include "data/sampler.h"
#include "data/tokens.h"

namespace lathe {

struct DataConfig {
  LATHE_FIELD(std::string, dir, "data/quickstart", "folder with train.bin, val.bin and manifest.json", anything())
  LATHE_FIELD(int64_t, workers, 1, "threads that prepare batches; 0: the training thread does", between(0, 64))
  LATHE_FIELD(int64_t, prefetch, 2, "micro-batches prepared ahead", between(1, 1000))
};

struct Batch {
  at::Tensor ids_BT, targets_BT;  ///< int64 [B, T] on the run's device
};

/// Windows for training, in order from a given micro-batch. Buffers are pinned and copied asynchronously for CUDA.
class Loader {
 public:
  struct Shape {
    int64_t batch_size, block_size, vocab_size;
  };
  /// Exit::io where a worker can't be started.
  Loader(const TokenFile& tokens, Shape shape, uint64_t seed, int64_t first_micro_batch, const DataConfig& config,
         at::Device device);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch; valid until the next call. An error of a worker is thrown here.
  Batch next();
  /// Seconds that the last next() waited for data.
  double waited() const { return waited_; }

 private:
  struct Slot {
    at::Tensor windows_BT1;  // int64 [B, T + 1]
    int64_t holds = -1;      // which micro-batch, once filled
    std::exception_ptr error;
    std::optional<c10::Event> copied;  // CUDA: when the copy to the device is through, so the buffer may be refilled
  };
  void fill(Slot& slot, int64_t micro_batch) const;
  void work();
  void end_workers();
  Slot& slot_of(int64_t micro_batch) { return slots_[static_cast<size_t>(micro_batch) % slots_.size()]; }

  const TokenFile& tokens_;
  Shape shape_;
  WindowSampler sampler_;
  at::Device device_;
  std::vector<Slot> slots_;  // micro-batch n lives in slot n % size
  int64_t to_claim_, to_give_;
  bool stop_ = false;
  double waited_ = 0;
  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::vector<std::thread> workers_;
};

/// The windows of an evaluation: the whole split in non-overlapping windows, the last one short, or its first
/// `batches` batches where that is not 0.
class EvalWindows {
 public:
  EvalWindows(const TokenFile& tokens, Loader::Shape shape, int64_t batches, at::Device device);
  /// False at the end. `batch` is reused. All rows of a batch have one length.
  bool next(Batch& batch);

 private:
  const TokenFile& tokens_;
  Loader::Shape shape_;
  at::Device device_;
  int64_t at_ = 0, end_;
};

}  // namespace lathe
