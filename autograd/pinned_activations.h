// Activations of a GPU in pinned memory of the host (memory.offload = "activations"): what ops and
// recomputed parts keep for backward is copied on a stream of its own beside the forward pass, and
// copied back ahead of its use. Every tensor comes back with its bytes and its strides, so no bit
// of a run changes. Compare torch.autograd.graph.save_on_cpu, and Rhu et al. 2016, "vDNN".
//
// A window of the activations that were kept last stays on the GPU, as in activation_offload.h. An
// activation that leaves the window is freed once its copy is complete: the GPU waits for that, not
// the host, so the memory that is in use does not depend on the speed of the copies.
//
// Tensors that are views of one memory are copied once, with all of it.
#pragma once

#include <deque>
#include <memory>

#include "autograd/activation_offload.h"

namespace lathe {

namespace detail {
struct PinnedStore;
struct PinnedActivation;
}  // namespace detail

/// The activations of one thread's graphs in the host's memory. It must outlive these graphs. Not
/// thread-safe; for tensors of one GPU.
class PinnedOffloader final : public ActivationOffloader {
 public:
  /// `window`: bytes that stay on the GPU, or three times the largest activation where that is
  /// more. `least`: bytes of memory below which an activation is not copied.
  explicit PinnedOffloader(size_t window = size_t{128} << 20, size_t least = size_t{64} << 10);
  ~PinnedOffloader() override;

  std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) override;
  bool is_exact() const override { return true; }
  /// Returns 0: there is no file.
  int64_t file_bytes() const override { return 0; }
  /// Returns the number of activations that it remembers in the window.
  size_t remembered() const { return in_window_.size(); }
  /// Returns the bytes that were copied. Their times are not known on the host.
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
  std::deque<std::weak_ptr<detail::PinnedActivation>> in_window_;  // the oldest first
};

}  // namespace lathe
