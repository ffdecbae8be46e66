#include "data/loader.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"

namespace lathe {

Loader::Loader(const TokenFile& tokens, Shape shape, uint64_t seed, int64_t first, const DataConfig& config,
               at::Device device)
    : tokens_(tokens),
      shape_(shape),
      sampler_(tokens.size(), shape.block_size, seed),
      device_(device),
      slots_(static_cast<size_t>(config.prefetch + 1)),  // one more: the batch in use keeps its buffer
      to_claim_(first),
      to_give_(first) {
  const MemoryScope scope(Memory::data);
  for (auto& slot : slots_) {
    slot.windows_BT1 = at::empty({shape.batch_size, shape.block_size + 1}, at::kLong);
    if (device.is_cuda()) slot.windows_BT1 = slot.windows_BT1.pin_memory();
  }
  try {
    for (int64_t i = 0; i < config.workers; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size();
    end_workers();
    fail(Exit::io, "cannot start thread ", started + 1, " of data.workers = ", config.workers, ": ", e.code().message(),
         "; lower data.workers, or raise the limit of processes and threads (ulimit -u)");
  }
}

Loader::~Loader() { end_workers(); }

void Loader::end_workers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  freed_.notify_all();
  for (auto& w : workers_) w.join();
}

void Loader::fill(Slot& slot, int64_t micro_batch) const {
  auto* out = slot.windows_BT1.mutable_data_ptr<int64_t>();
  const int64_t length = shape_.block_size + 1;
  for (int64_t b = 0; b < shape_.batch_size; ++b) {
    tokens_.read(sampler_.start_of(micro_batch * shape_.batch_size + b), length, shape_.vocab_size, out + b * length);
  }
}

void Loader::work() {
  const auto ring = static_cast<int64_t>(slots_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    // The slot of to_give_ - 1 is still being read by the training thread.
    freed_.wait(lock, [&] { return stop_ || to_claim_ < to_give_ - 1 + ring; });
    if (stop_) return;
    const int64_t n = to_claim_++;
    Slot& slot = slot_of(n);
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(slot, n);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.error = error;
    slot.holds = n;
    filled_.notify_all();
  }
}

Batch Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t n = to_give_;
  Slot& slot = slot_of(n);
  if (n > 0 && slot_of(n - 1).copied) slot_of(n - 1).copied->synchronize();
  if (workers_.empty()) {
    fill(slot, n);
    to_give_ = n + 1;
  } else {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return slot.holds == n; });
    if (slot.error) std::rethrow_exception(slot.error);
    to_give_ = n + 1;
    lock.unlock();
    freed_.notify_all();
  }
  bump_version(slot.windows_BT1);  // a graph that still holds the batch that was here before must notice
  waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const at::Tensor windows = slot.windows_BT1.to(device_, /*non_blocking=*/true);
  if (device_.is_cuda()) {
    const c10::impl::VirtualGuardImpl cuda(device_.type());
    if (!slot.copied) slot.copied.emplace(device_.type());
    slot.copied->record(cuda.getStream(device_));
  }
  return {windows.slice(1, 0, shape_.block_size), windows.slice(1, 1, shape_.block_size + 1)};
}

EvalWindows::EvalWindows(const TokenFile& tokens, Loader::Shape shape, int64_t batches, at::Device device)
    : tokens_(tokens), shape_(shape), device_(device), end_(tokens.size() - 1) {
  const int64_t each = shape.batch_size * shape.block_size;
  if (batches > 0 && batches <= end_ / each) end_ = batches * each;
}

bool EvalWindows::next(Batch& batch) {
  if (at_ >= end_) return false;
  const int64_t left = end_ - at_, t = std::min(shape_.block_size, left);
  const int64_t rows = std::min(shape_.batch_size, left / t);
  const at::Tensor windows = at::empty({rows, t + 1}, at::kLong);
  for (int64_t b = 0; b < rows; ++b) {
    tokens_.read(at_ + b * t, t + 1, shape_.vocab_size, windows.mutable_data_ptr<int64_t>() + b * (t + 1));
  }
  at_ += rows * t;
  const at::Tensor there = windows.to(device_);
  batch = {there.slice(1, 0, t), there.slice(1, 1, t + 1)};
  return true;
}

}  // namespace lathe
