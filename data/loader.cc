#include "data/loader.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <system_error>

#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/thread_log.h"
#include "core/timing.h"

namespace lathe {

Loader::Loader(const Data& data, const BatchSizes& sizes, uint64_t seed, int64_t first,
               const DataConfig& config, at::Device device, const BatchPlan& plan)
    : batches_(data.training(sizes, seed)),
      device_(device),
      plan_(plan),
      slots_(static_cast<size_t>(config.prefetch + 1)),  // one more slot, for the batch in use
      next_fill_(first),
      next_batch_(first) {
  const MemoryScope scope(Memory::data);
  for (auto& slot : slots_) {
    slot.buffers = batches_->make_buffers();
    if (!device.is_cuda()) continue;
    for (auto& buffer : slot.buffers) buffer = buffer.pin_memory();
  }
  try {
    for (int64_t i = 0; i < config.workers; ++i)
      workers_.emplace_back([this, i] { work(static_cast<int>(i)); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size();
    end_workers();
    fail(Exit::memory, "cannot start thread ", started + 1, " of data.workers = ", config.workers,
         ": ", e.code().message(),
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

void Loader::work(int worker) {
  const auto ring = static_cast<int64_t>(slots_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    // The training thread still reads the slot of micro-batch next_batch_ - 1.
    freed_.wait(lock, [&] { return stop_ || next_fill_ < next_batch_ - 1 + ring; });
    if (stop_) return;
    const int64_t n = next_fill_++;
    Slot& slot = slot_of(n);
    lock.unlock();
    std::exception_ptr error;
    try {
      const RecordWork note(ThreadLog::active(), "data worker", worker);
      batches_->fill(slot.buffers, plan_.global_index(n));
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.error = error;
    slot.micro_batch = n;
    filled_.notify_all();
  }
}

Batch Loader::next() {
  const int64_t n = next_batch_;
  Slot& slot = slot_of(n);
  // The GPU copies a batch after the computations of the previous batch. Waiting for this copy does
  // not count as waiting for data.
  if (n > 0 && slot_of(n - 1).copied) slot_of(n - 1).copied->synchronize();
  const auto begin = Clock::now();

  if (workers_.empty()) {
    batches_->fill(slot.buffers, plan_.global_index(n));
    next_batch_ = n + 1;
  } else {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return slot.micro_batch == n; });
    if (slot.error) std::rethrow_exception(slot.error);
    next_batch_ = n + 1;
    lock.unlock();
    freed_.notify_all();
  }

  std::vector<at::Tensor> on_device;
  waited_ = seconds_since(begin);
  for (const auto& buffer : slot.buffers) {
    // On CPU, an autograd graph may have saved the buffer's previous batch. The backward pass of
    // that graph must fail instead of using the new data.
    bump_version(buffer);
    on_device.push_back(buffer.to(device_, /*non_blocking=*/true));
  }

  if (device_.is_cuda()) {
    const c10::impl::VirtualGuardImpl cuda(device_.type());
    if (!slot.copied) slot.copied.emplace(device_.type());
    slot.copied->record(cuda.getStream(device_));
  }
  return batches_->batch_of(on_device);
}

std::vector<Batch> draw_batches(const Data& data, const BatchSizes& sizes, uint64_t seed,
                                int64_t first, int64_t n, at::Device device) {
  DataConfig without_workers;
  without_workers.workers = 0;
  Loader loader(data, sizes, seed, first, without_workers, device);
  std::vector<Batch> drawn;
  for (int64_t i = 0; i < n; ++i) {
    const Batch b = loader.next();
    drawn.push_back({.inputs = b.inputs.clone(),
                     .targets = b.targets.clone(),
                     .starts = b.starts.defined() ? b.starts.clone() : at::Tensor()});
  }
  return drawn;
}

}  // namespace lathe
