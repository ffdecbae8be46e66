// Offloads GPU activations to pinned host memory (memory.offload = "activations"). Tensors that ops
// and recomputed parts of a model save for backward are copied to the host on a separate stream
// during the forward pass, and copied back before they are used. Every tensor comes back with the
// same bytes and strides, so the results of a run do not change. Compare
// torch.autograd.graph.save_on_cpu, and Rhu et al. 2016, "vDNN".
//
// A window of the most recently saved activations stays on the GPU, as in activation_offload.h. The
// GPU memory of an activation that leaves the window is freed once its copy is complete. The GPU,
// not the host, waits for the copy, so memory use does not depend on the speed of the copies.
//
// If tensors share a storage, the complete storage is copied once.
#pragma once

#include <deque>
#include <memory>

#include "autograd/activation_offload.h"

namespace lathe {

namespace detail {
struct PinnedStore;
struct PinnedActivation;
}  // namespace detail

/// Keeps the activations of one thread's graphs in host memory. All activations must be on one GPU.
/// A PinnedOffloader must outlive these graphs, and is not thread-safe.
class PinnedOffloader final : public ActivationOffloader {
 public:
  /// Keeps at most `window` bytes of activations on the GPU, or three times the largest activation
  /// if that is more. Does not copy activations whose storage has fewer than `least` bytes.
  explicit PinnedOffloader(size_t window = size_t{128} << 20, size_t least = size_t{64} << 10);
  ~PinnedOffloader() override;

  /// Copies t to the host if it is on a GPU and its storage has at least `least` bytes. Returns
  /// null otherwise.
  std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) override;
  bool is_exact() const override { return true; }
  /// Returns 0: there is no file.
  int64_t file_bytes() const override { return 0; }
  /// Returns the number of activations in the window, including freed activations that are not
  /// removed yet.
  size_t remembered() const { return in_window_.size(); }
  /// Returns the number of bytes that were copied. The times are 0, since the host does not measure
  /// them.
  TransferTimes times() const override;

 private:
  friend class PinnedTensor;

  std::shared_ptr<detail::PinnedActivation> store(const at::Tensor& t);
  void shrink_window();
  at::Tensor restore(detail::PinnedActivation& stored);
  void read(detail::PinnedActivation& stored);
  void read_ahead(uint64_t number);
  size_t window_bytes() const;

  size_t window_, least_;
  std::shared_ptr<detail::PinnedStore> store_;
  std::deque<std::weak_ptr<detail::PinnedActivation>> in_window_;  // oldest activation first
};

}  // namespace lathe
