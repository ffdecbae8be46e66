#include "autograd/activation_offload.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/timing.h"

namespace lathe {

using detail::ActivationStore;
using detail::StoredActivation;

/// The state that the training thread and the transfer threads share. `mutex` guards every member.
/// Only reads and writes of the file's contents need no lock.
struct detail::ActivationStore {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<ScratchFile> file;  // null in a dry run
  uint64_t size = 0, end = 0;         // size of the file, and end of its part in use, in bytes
  struct Alive {
    std::weak_ptr<StoredActivation> activation;
    uint64_t end;  // offset in the file at which the activation's bytes end
  };
  std::map<uint64_t, Alive> alive;  // the activations that still exist, by number
  std::unordered_map<const c10::StorageImpl*, uint64_t> by_storage;
  size_t largest = 0;       // bytes of the largest activation so far
  size_t window_bytes = 0;  // bytes of the activations in the window
  std::exception_ptr error;
  TransferTimes times;
};

/// The storage of one or more saved tensors. It lives until all nodes have released these tensors.
struct detail::StoredActivation {
  StoredActivation(std::shared_ptr<ActivationStore> store, uint64_t number, const at::Tensor& t)
      : store(std::move(store)),
        number(number),
        bytes(t.storage().nbytes()),
        version(t._version()),
        original(t.storage().getWeakStorageImpl()),
        key(t.storage().unsafeGetStorageImpl()),
        memory(t) {}
  ~StoredActivation();
  StoredActivation(const StoredActivation&) = delete;
  StoredActivation& operator=(const StoredActivation&) = delete;

  const std::shared_ptr<ActivationStore> store;
  const uint64_t number;
  const size_t bytes;
  const int64_t version;
  const c10::weak_intrusive_ptr<c10::StorageImpl> original;  // keeps the address `key` in use
  const c10::StorageImpl* const key;
  uint64_t offset = 0;

  // Guarded by the store's mutex. `memory` is also read without the mutex, since only the training
  // thread sets it, and never while a transfer uses it.
  at::Tensor memory;          // the activation's bytes; undefined while only the file has them
  bool is_in_window = false;  // if true, `memory` is the tensor that the op saved
  bool is_written = false, is_reading = false;
  bool has_changed = false;  // the activation was changed in place before it left the window
};

detail::StoredActivation::~StoredActivation() {
  const std::lock_guard lock(store->mutex);
  if (const auto found = store->by_storage.find(key);
      found != store->by_storage.end() && found->second == number)
    store->by_storage.erase(found);
  if (is_in_window) store->window_bytes -= bytes;
  // The file space of a freed activation is reused only after all activations behind it in the file
  // are freed. Little space is lost, since graphs are freed starting from their end.
  store->alive.erase(number);
  store->end = store->alive.empty() ? 0 : store->alive.rbegin()->second.end;
}

namespace {

/// Calls `move`, which reads or writes an activation, and records the time of the transfer and any
/// error. Runs on a transfer thread. Does nothing if no node keeps the activation any more.
template <class F>
void transfer(ActivationStore& store, const std::weak_ptr<StoredActivation>& weak, F&& move) {
  const std::shared_ptr<StoredActivation> s = weak.lock();
  if (!s) return;
  const Clock::time_point begin = Clock::now();
  std::exception_ptr error;
  try {
    move(*s);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(store.mutex);
    if (store.error == nullptr) store.error = error;
    s->is_written = true;
    s->is_reading = false;
    store.times.bytes += static_cast<int64_t>(s->bytes);
    store.times.transfer_s += seconds_since(begin);
  }
  store.changed.notify_all();
}

}  // namespace

/// A tensor whose memory may be in the file.
class TensorOnDisk final : public PackedTensor {
 public:
  TensorOnDisk(DiskOffloader& offload, std::shared_ptr<StoredActivation> stored,
               const at::Tensor& t)
      : offload_(offload),
        stored_(std::move(stored)),
        sizes_(t.sizes().vec()),
        strides_(t.strides().vec()),
        offset_(t.storage_offset()),
        dtype_(t.dtype()) {}

  at::Tensor unpacked() const override {
    const at::Tensor memory = offload_.restore(stored_);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(memory.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype_);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
    return t;
  }

 private:
  DiskOffloader& offload_;
  std::shared_ptr<StoredActivation> stored_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_;
  caffe2::TypeMeta dtype_;
};

DiskOffloader::DiskOffloader(const fs::path& folder, size_t window, size_t least)
    : window_(window), least_(least), store_(std::make_shared<ActivationStore>()) {
  if (is_dry_run()) return;
  store_->file = std::make_unique<ScratchFile>(folder, 0);
  reader_ = std::make_unique<WorkThread>();
  writer_ = std::make_unique<WorkThread>();
}

DiskOffloader::~DiskOffloader() = default;

std::shared_ptr<const PackedTensor> DiskOffloader::pack(const at::Tensor& t) {
  if (!t.defined() || !t.is_cpu() || t.storage().nbytes() < least_ ||
      category_of(t.storage().data_ptr()) != Memory::activations)
    return nullptr;
  std::shared_ptr<StoredActivation> stored = find(t);
  if (!stored) stored = store(t);
  return std::make_shared<TensorOnDisk>(*this, std::move(stored), t);
}

/// Returns the stored activation that has the memory and the current values of t, or null if there
/// is none.
std::shared_ptr<StoredActivation> DiskOffloader::find(const at::Tensor& t) const {
  std::shared_ptr<StoredActivation> stored;  // destroyed after unlocking: its destructor locks
  const std::lock_guard lock(store_->mutex);
  const auto known = store_->by_storage.find(t.storage().unsafeGetStorageImpl());
  if (known == store_->by_storage.end()) return nullptr;
  stored = store_->alive.at(known->second).activation.lock();
  return stored && !stored->original.expired() && stored->version == t._version() ? stored
                                                                                  : nullptr;
}

/// Adds the memory of t to the window and begins to write this memory to the file.
std::shared_ptr<StoredActivation> DiskOffloader::store(const at::Tensor& t) {
  const auto stored = std::make_shared<StoredActivation>(store_, next_number_++, t);
  {
    const std::lock_guard lock(store_->mutex);
    constexpr uint64_t page = 4096;
    stored->offset = store_->end;
    reserve(store_->end + (stored->bytes + page - 1) / page * page);
    store_->alive.emplace(stored->number, ActivationStore::Alive{stored, store_->end});
    store_->by_storage.insert_or_assign(stored->key, stored->number);
    stored->is_in_window = true;
    store_->window_bytes += stored->bytes;
    store_->largest = std::max(store_->largest, stored->bytes);
  }
  in_window_.push_back(stored);
  write(stored);
  shrink_window();
  return stored;
}

/// Marks the first `bytes` bytes of the file as in use. Extends the file if it is shorter, by at
/// least 64 MiB.
void DiskOffloader::reserve(uint64_t bytes) {
  if (bytes > store_->size) {
    const uint64_t step = std::max(uint64_t{64} << 20, store_->size / 8);
    const uint64_t size = std::max(bytes, store_->size + step);
    if (store_->file) store_->file->grow(size);
    store_->size = size;
  }
  store_->end = bytes;
}

void DiskOffloader::write(const std::shared_ptr<StoredActivation>& stored) {
  if (!store_->file) {
    stored->is_written = true;
    return;
  }
  writer_->add([store = store_, weak = std::weak_ptr(stored)] {
    transfer(*store, weak, [&](StoredActivation& s) {
      store->file->write(s.offset, s.memory.storage().data(), s.bytes);
      fault_point("activations: written");
    });
  });
}

/// Waits until `is_true` returns true. Throws the first error of the transfer threads.
void DiskOffloader::wait_until(std::unique_lock<std::mutex>& lock,
                               const std::function<bool()>& is_true) {
  ActivationStore& s = *store_;
  if (s.error == nullptr && !is_true()) {
    const Clock::time_point begin = Clock::now();
    s.changed.wait(lock, [&] { return s.error != nullptr || is_true(); });
    s.times.wait_s += seconds_since(begin);
  }
  if (s.error != nullptr) std::rethrow_exception(s.error);
}

/// Frees the memory of the oldest activations, each after it is written, until the window is within
/// its limit.
void DiskOffloader::shrink_window() {
  std::shared_ptr<StoredActivation> oldest;  // destroyed after unlocking: its destructor locks
  while (!in_window_.empty()) {
    oldest = in_window_.front().lock();
    if (!oldest) {
      in_window_.pop_front();
      continue;
    }
    std::unique_lock lock(store_->mutex);
    if (store_->window_bytes <= std::max(window_, 3 * store_->largest)) return;
    wait_until(lock, [&] { return oldest->is_written; });
    // Compare after the write: an op changes the data first and then increments the version.
    oldest->has_changed = oldest->memory._version() != oldest->version;
    store_->window_bytes -= oldest->bytes;
    oldest->is_in_window = false;
    const at::Tensor freed = std::exchange(oldest->memory, {});
    lock.unlock();
    in_window_.pop_front();
  }
}

/// Returns a tensor with the bytes of an activation. Reads these bytes from the file if necessary.
/// Also starts to read earlier activations.
at::Tensor DiskOffloader::restore(const std::shared_ptr<StoredActivation>& stored) {
  {
    const std::lock_guard lock(store_->mutex);
    const bool has_changed = stored->has_changed ||
                             (stored->is_in_window && stored->memory._version() != stored->version);
    LATHE_CHECK(!has_changed,
                "a tensor saved for backward, which is offloaded to the disk, was changed in place "
                "after it was saved");
  }
  if (!stored->memory.defined()) read(stored);
  read_ahead(stored->number);
  std::unique_lock lock(store_->mutex);
  wait_until(lock, [&] { return !stored->is_reading; });
  return stored->memory;
}

/// Begins to read an activation that is only in the file.
void DiskOffloader::read(const std::shared_ptr<StoredActivation>& stored) {
  const MemoryScope scope(Memory::activations);
  const at::Tensor memory = at::empty({static_cast<int64_t>(stored->bytes)}, at::kByte);
  const std::lock_guard lock(store_->mutex);
  stored->memory = memory;
  if (!store_->file) return;
  stored->is_reading = true;
  reader_->add([store = store_, weak = std::weak_ptr(stored), memory] {
    transfer(*store, weak, [&](StoredActivation& s) {
      store->file->read(s.offset, memory.mutable_data_ptr(), s.bytes);
      fault_point("activations: read");
    });
  });
}

/// Begins to read the activations that were stored before activation `number`, up to the size of
/// the window.
void DiskOffloader::read_ahead(uint64_t number) {
  std::vector<std::shared_ptr<StoredActivation>> next;
  {
    std::vector<std::shared_ptr<StoredActivation>> held;  // destroyed after unlocking
    const std::lock_guard lock(store_->mutex);
    size_t bytes = 0;
    for (auto at = store_->alive.find(number); at != store_->alive.begin();) {
      held.push_back((--at)->second.activation.lock());
      if (!held.back()) continue;
      bytes += held.back()->bytes;
      if (bytes > std::max(window_, 3 * store_->largest)) break;
      if (!held.back()->memory.defined()) next.push_back(held.back());
    }
  }
  for (const std::shared_ptr<StoredActivation>& stored : next) read(stored);
}

int64_t DiskOffloader::file_bytes() const {
  const std::lock_guard lock(store_->mutex);
  return static_cast<int64_t>(store_->size);
}

TransferTimes DiskOffloader::times() const {
  const std::lock_guard lock(store_->mutex);
  return store_->times;
}

OffloadActivations::OffloadActivations(ActivationOffloader& offload) : scope_(Memory::activations) {
  install_allocator();
  mode().packer = &offload;
}

}  // namespace lathe
