// Computes causal attention with ATen's GPU kernels: FlashAttention 2 (Dao 2023) for float16 and
// bfloat16, and the memory-efficient kernel (Rabe and Staats 2021) for float32. The memory of both
// kernels is linear in the number of positions, even with separate documents or with a window of
// keys. Both kernels are deterministic under ATen's deterministic algorithms, which the trainer
// enables on a GPU.
//
// On Hopper, cuDNN's forward kernel replaces the slower forward kernel of FlashAttention. This
// requires that there are neither documents nor a window, as many keys as queries (2 or more), as
// many heads of keys as of queries, and at most 128 elements in a head. cuDNN's kernel saves the
// same tensors for backward. cuDNN's backward kernel is not deterministic, so FlashAttention's
// backward kernel is used for these tensors too.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lathe {

/// The documents of a batch as the kernels read them.
struct DocumentBounds {
  at::Tensor begins;    ///< int32: index of each document's first token among all B T tokens,
                        ///< followed by B T
  int64_t longest = 0;  ///< positions of the longest document
};
/// Returns the documents that `starts` [B, T] on a GPU describes; see attention() in ops.h. In each
/// row, starts[t] must be t or starts[t - 1]; otherwise `begins` of the result is undefined. Waits
/// for the GPU, unless the previous call on this thread had the same tensor, unchanged since then.
/// The blocks of a model therefore wait only once.
DocumentBounds document_bounds(const at::Tensor& starts);

/// Options of the GPU attention kernels.
struct GpuAttention {
  double scale = 1;            ///< multiplies q k^T
  int64_t window = 0;          ///< number of keys that a query sees, including the key at its own
                               ///< position; 0: no limit
  DocumentBounds documents{};  ///< `begins` undefined: each row is one document
};
/// The results of a kernel's forward pass, which the kernel's backward pass reads.
struct Attended {
  at::Tensor out{};  ///< [B, T, H, D], contiguous, for the kernels of this header
  at::Tensor lse{};  ///< log-sum-exp of each query's scores, in the kernel's layout
  /// State of the kernel's random numbers, unused without dropout.
  at::Tensor seed{}, offset{};
};

/// Returns whether a kernel exists for heads of `width` elements of a dtype.
bool gpu_attention_ready(at::ScalarType dtype, int64_t width);
/// Returns the attention of q [B, T, H, D] on k and v [B, S, K, D]: K divides H and T is at most S.
/// Query t is at position S - T + t. The last dim must be contiguous. Documents need S = T.
Attended gpu_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const GpuAttention& options);
/// Returns the gradients of q, k and v for consecutive parts of the batch: one part, or two if that
/// is faster.
std::vector<std::array<at::Tensor, 3>> gpu_attention_backward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const Attended& attended, const GpuAttention& options);

}  // namespace lathe
