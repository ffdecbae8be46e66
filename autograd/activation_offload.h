// Offloads activations to a disk (memory.offload = "activations"). Tensors that ops and recomputed
// parts of a model (autograd/recompute.h) save for backward are written to a scratch file in the
// forward pass, and read back before they are used. Every tensor comes back with the same bytes and
// strides, so the results of a run do not change. Compare Rajbhandari et al. 2021, "ZeRO-Infinity",
// and torch.autograd.graph.save_on_cpu.
//
// A window of the most recently saved activations stays in memory, because the writer thread may
// not have written them yet, and because the backward pass uses them first. An activation leaves
// the window once it is written and newer activations have filled the window. The backward pass
// uses activations in roughly reverse order, so an access to one activation also starts to read the
// activations that were saved before it, up to the size of the window. Memory use depends on the
// size of the window and not on the speed of the disk, so a dry run has the same peak as the run.
//
// If tensors share a storage, the complete storage is written once.
#pragma once

#include <deque>
#include <memory>

#include "autograd/saved_packer.h"
#include "core/io/scratch_file.h"
#include "core/memory.h"

namespace lathe {

namespace detail {
struct ActivationStore;
struct StoredActivation;
}  // namespace detail

/// Moves saved activations out of the memory of the device on which a model trains.
class ActivationOffloader : public SavedPacker {
 public:
  /// Returns the size of the scratch file in bytes. In a dry run, this is the size that the file
  /// would have.
  virtual int64_t file_bytes() const = 0;
  /// Returns the statistics of the transfers so far.
  virtual TransferTimes times() const = 0;
};

/// Keeps activations of one thread's graphs in a scratch file. Only CPU tensors are kept there. A
/// DiskOffloader must outlive these graphs. Its functions throw FileError with Exit::io if a
/// transfer fails or has failed before.
class DiskOffloader final : public ActivationOffloader {
 public:
  /// Creates the file in `folder` (see ScratchFile); the file grows on demand. A dry run creates no
  /// file. At most `window` bytes of activations stay in memory, or three times the largest
  /// activation if that is more. Activations whose storage has fewer than `least` bytes are not
  /// offloaded.
  explicit DiskOffloader(const fs::path& folder, size_t window = size_t{128} << 20,
                         size_t least = size_t{64} << 10);
  ~DiskOffloader() override;

  /// Stores t in the file if t is on the CPU, and the storage of t is counted as
  /// Memory::activations and has at least `least` bytes. Returns null otherwise.
  std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) override;
  bool is_exact() const override { return true; }

  int64_t file_bytes() const override;
  TransferTimes times() const override;

 private:
  friend class TensorOnDisk;

  std::shared_ptr<detail::StoredActivation> find(const at::Tensor& t) const;
  std::shared_ptr<detail::StoredActivation> store(const at::Tensor& t);
  void reserve(uint64_t bytes);
  void write(const std::shared_ptr<detail::StoredActivation>& stored);
  void shrink_window();
  at::Tensor restore(const std::shared_ptr<detail::StoredActivation>& stored);
  void read(const std::shared_ptr<detail::StoredActivation>& stored);
  void read_ahead(uint64_t number);
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_true);

  size_t window_, least_;
  uint64_t next_number_ = 0;
  std::shared_ptr<detail::ActivationStore> store_;
  std::deque<std::weak_ptr<detail::StoredActivation>> in_window_;  // oldest activation first
  std::unique_ptr<WorkThread> reader_, writer_;  // last, because they use the members above
};

/// While this object exists, `offload` keeps the activations that ops and recomputed parts save on
/// this thread. The thread's allocations are counted as activations, except in a MemoryScope of
/// another category; see PackSaved.
class OffloadActivations : public ModeGuard {
 public:
  /// Installs Lathe's allocator, which knows the category of a tensor's memory.
  explicit OffloadActivations(ActivationOffloader& offload);

 private:
  MemoryScope scope_;
};

}  // namespace lathe
