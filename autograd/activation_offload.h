// Activations on a disk (memory.offload = "activations"): what ops and recomputed parts keep for
// backward is written to a scratch file during the forward pass and read again ahead of its use.
// Every tensor comes back with its bytes and its strides, so no bit of a run changes. Compare
// Rajbhandari et al. 2021, "ZeRO-Infinity", and torch.autograd.graph.save_on_cpu.
//
// A window of the activations that were kept last stays in memory: it is what the writer has not
// finished yet, and what the backward pass begins with. An activation leaves the window when it is
// written and newer ones have taken its place. The backward pass uses activations in about the
// reverse order, so with each one that it asks for, those that were kept before it are read, up to
// as many bytes. What is in memory therefore does not depend on the speed of the disk, and a dry
// run has the same peak.
//
// Tensors that are views of one memory are written once, with all of it.
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

/// Keeps activations out of the memory that a model trains in.
class OffloadedActivations : public SavedPacker {
 public:
  /// Returns the bytes of the scratch file.
  virtual int64_t file_bytes() const = 0;
  /// Returns what the transfers took so far.
  virtual TransferTimes times() const = 0;
};

/// The activations of one thread's graphs in a scratch file. It must outlive these graphs. For
/// tensors on CPUs. Its functions throw FileError with Exit::io for an error of the disk, also one
/// of an earlier transfer.
class ActivationOffload final : public OffloadedActivations {
 public:
  /// Opens the file in `folder` (see ScratchFile), which grows as it is needed. A dry run has
  /// none. `window`: bytes that stay in memory, or three times the largest activation where
  /// that is more. `least`: bytes of memory below which an activation is not written.
  explicit ActivationOffload(const fs::path& folder, size_t window = size_t{128} << 20,
                             size_t least = size_t{64} << 10);
  ~ActivationOffload() override;

  /// Keeps t in the file if it is counted as an activation; see Memory.
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
  std::deque<std::weak_ptr<detail::StoredActivation>> in_window_;  // the oldest first
  std::unique_ptr<WorkThread> reader_, writer_;  // the last members: they use the others
};

/// While alive, the ops of this thread and its recomputed parts keep their activations in
/// `offload`. What the thread allocates is counted as activations, except in a MemoryScope of
/// another category; see PackSaved.
class OffloadActivations : public ModeGuard {
 public:
  /// Installs Lathe's allocator, which knows the category of a tensor's memory.
  explicit OffloadActivations(OffloadedActivations& offload);

 private:
  MemoryScope scope_;
};

}  // namespace lathe
