#include "autograd/pinned_activations.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lathe {
namespace detail {

/// The state that all activations share.
struct PinnedStore {
  std::map<uint64_t, std::weak_ptr<PinnedActivation>> alive;  // existing activations, by number
  std::unordered_map<const c10::StorageImpl*, uint64_t> by_storage;
  uint64_t next_number = 0;
  size_t largest = 0;       // bytes of the largest activation so far
  size_t window_bytes = 0;  // bytes of the activations in the window
  int64_t copied = 0;       // bytes copied so far, to the host and back
};

/// The storage of one or more saved tensors. It lives until all nodes have released these tensors.
struct PinnedActivation {
  PinnedActivation(std::shared_ptr<PinnedStore> store, const at::Tensor& t)
      : store(std::move(store)),
        number(this->store->next_number++),
        bytes(t.storage().nbytes()),
        version(t._version()),
        original(t.storage().getWeakStorageImpl()),
        key(t.storage().unsafeGetStorageImpl()),
        device(t.device()),
        memory(t) {}
  ~PinnedActivation();
  PinnedActivation(const PinnedActivation&) = delete;
  PinnedActivation& operator=(const PinnedActivation&) = delete;

  const std::shared_ptr<PinnedStore> store;
  const uint64_t number;
  const size_t bytes;
  const int64_t version;
  const c10::weak_intrusive_ptr<c10::StorageImpl> original;  // keeps the address `key` in use
  const c10::StorageImpl* const key;
  const at::Device device;

  at::Tensor memory;  // the activation's bytes; undefined while only the host has them
  at::Tensor on_host;
  std::optional<c10::Event> copied;  // the event that was recorded after the latest copy
  bool is_in_window = true;          // if true, `memory` is the tensor that the op saved
  bool has_changed = false;          // the activation was changed in place in the window
};

}  // namespace detail

using detail::PinnedActivation;
using detail::PinnedStore;

namespace {

c10::Stream computing_stream(at::Device gpu) {
  return c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu);
}
c10::Stream copying_stream(at::Device gpu) {
  static const c10::Stream stream =
      c10::impl::VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu);
  return stream;
}

/// Returns all bytes of a tensor's memory.
at::Tensor bytes_of(const at::Tensor& t) {
  return at::empty({0}, t.options().dtype(at::kByte))
      .set_(t.storage(), 0, {static_cast<int64_t>(t.storage().nbytes())}, {1});
}

/// Queues a copy that starts after all work that was queued on the computing stream so far.
void begin_copy(PinnedActivation& a, const at::Tensor& to, const at::Tensor& from) {
  const at::Device gpu = a.device;
  const c10::Stream copying = copying_stream(gpu);
  c10::Event asked(gpu.type());
  asked.record(computing_stream(gpu));
  asked.block(copying);

  const c10::StreamGuard on(copying);
  to.copy_(from, /*non_blocking=*/true);
  a.copied.emplace(gpu.type());
  a.copied->record(copying);
  a.store->copied += static_cast<int64_t>(a.bytes);
}

/// Makes the computing stream wait for the last copy of an activation.
void wait_for_copy(const PinnedActivation& a) {
  if (a.copied && a.memory.defined()) a.copied->block(computing_stream(a.device));
}

}  // namespace

detail::PinnedActivation::~PinnedActivation() {
  // The allocator may reuse the memory after the destructor, so the computing stream must wait for
  // the copy.
  try {
    wait_for_copy(*this);
  } catch (const c10::Error&) {
    // After an error of the GPU, every call fails. The error that ended the pass is reported.
  }
  if (const auto found = store->by_storage.find(key);
      found != store->by_storage.end() && found->second == number)
    store->by_storage.erase(found);
  if (is_in_window) store->window_bytes -= bytes;
  store->alive.erase(number);
}

/// A tensor whose memory may be on the host.
class PinnedTensor final : public PackedTensor {
 public:
  PinnedTensor(PinnedOffloader& all, std::shared_ptr<PinnedActivation> stored, const at::Tensor& t)
      : all_(all),
        stored_(std::move(stored)),
        options_(t.options()),
        sizes_(t.sizes().vec()),
        strides_(t.strides().vec()),
        offset_(t.storage_offset()) {}

  at::Tensor unpacked() const override {
    return at::empty({0}, options_)
        .set_(all_.restore(*stored_).storage(), offset_, sizes_, strides_);
  }

 private:
  PinnedOffloader& all_;
  std::shared_ptr<PinnedActivation> stored_;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_;
};

PinnedOffloader::PinnedOffloader(size_t window, size_t least)
    : window_(window), least_(least), store_(std::make_shared<PinnedStore>()) {}

PinnedOffloader::~PinnedOffloader() = default;

std::shared_ptr<const PackedTensor> PinnedOffloader::pack(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda() || t.storage().nbytes() < least_) return nullptr;

  std::shared_ptr<PinnedActivation> stored;
  const auto known = store_->by_storage.find(t.storage().unsafeGetStorageImpl());
  if (known != store_->by_storage.end()) stored = store_->alive.at(known->second).lock();
  if (!stored || stored->original.expired() || stored->version != t._version()) stored = store(t);
  return std::make_shared<PinnedTensor>(*this, std::move(stored), t);
}

/// Adds the memory of t to the window and begins to copy this memory to the host.
std::shared_ptr<PinnedActivation> PinnedOffloader::store(const at::Tensor& t) {
  const auto stored = std::make_shared<PinnedActivation>(store_, t);
  store_->alive.emplace(stored->number, stored);
  store_->by_storage.insert_or_assign(stored->key, stored->number);
  store_->window_bytes += stored->bytes;
  store_->largest = std::max(store_->largest, stored->bytes);

  stored->on_host = at::empty({static_cast<int64_t>(stored->bytes)},
                              at::TensorOptions(at::kByte).pinned_memory(true));
  begin_copy(*stored, stored->on_host, bytes_of(t));
  in_window_.push_back(stored);
  shrink_window();
  return stored;
}

/// Returns the number of bytes of activations that may stay on the GPU.
size_t PinnedOffloader::window_bytes() const { return std::max(window_, 3 * store_->largest); }

/// Frees the memory of the oldest activations until the window is within its limit.
void PinnedOffloader::shrink_window() {
  while (!in_window_.empty()) {
    const auto oldest = in_window_.front().lock();
    if (oldest && store_->window_bytes <= window_bytes()) return;
    in_window_.pop_front();
    if (!oldest) continue;
    wait_for_copy(*oldest);
    oldest->has_changed = oldest->memory._version() != oldest->version;
    oldest->is_in_window = false;
    oldest->memory.reset();
    store_->window_bytes -= oldest->bytes;
  }
}

/// Returns a tensor on the GPU with the bytes of an activation. Also begins to copy earlier
/// activations back.
at::Tensor PinnedOffloader::restore(PinnedActivation& stored) {
  LATHE_CHECK(
      !stored.has_changed && (!stored.is_in_window || stored.memory._version() == stored.version),
      "a tensor saved for backward, which is offloaded to the host, was changed in place "
      "after it was saved");
  if (!stored.memory.defined()) read(stored);
  read_ahead(stored.number);
  if (!stored.is_in_window) wait_for_copy(stored);
  return stored.memory;
}

/// Begins to copy back an activation that is only on the host.
void PinnedOffloader::read(PinnedActivation& stored) {
  stored.memory = at::empty({static_cast<int64_t>(stored.bytes)},
                            at::TensorOptions(at::kByte).device(stored.device));
  begin_copy(stored, stored.memory, stored.on_host);
}

/// Begins to copy back the activations that were stored before activation `number`, up to the size
/// of the window.
void PinnedOffloader::read_ahead(uint64_t number) {
  size_t bytes = 0;
  for (auto at = store_->alive.find(number); at != store_->alive.begin();) {
    const auto before = (--at)->second.lock();
    if (!before) continue;
    bytes += before->bytes;
    if (bytes > window_bytes()) return;
    if (!before->memory.defined()) read(*before);
  }
}

TransferTimes PinnedOffloader::times() const { return {.bytes = store_->copied}; }

}  // namespace lathe
