// Defines helpers of ops that call kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "autograd/node.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/kernels/pack.h"
#include "core/mode.h"

namespace lathe {

/// Returns whether the CPU kernels take tensors of this dtype: float32, bfloat16 or float16, if
/// gemm_ready() (core/kernels/gemm.h) returns true for the dtype.
inline bool kernel_dtype(at::ScalarType dtype) {
  return (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
         gemm_ready(element_of(dtype));
}
/// Returns whether the CPU kernels take this tensor: it is on the CPU, not empty, and of a dtype
/// that kernel_dtype() accepts.
inline bool kernel_ready(const at::Tensor& t) {
  return t.is_cpu() && kernel_dtype(t.scalar_type()) && t.numel() > 0;
}

/// Returns whether the GPU kernels of core/kernels/*.cu take this tensor.
inline bool gpu_kernel_ready(const at::Tensor& t) {
  const at::ScalarType d = t.scalar_type();
  return t.is_cuda() && kernels_enabled() && t.numel() > 0 &&
         (d == at::kFloat || d == at::kBFloat16 || d == at::kHalf);
}

/// Returns t as the kernels need it: contiguous and, on a GPU, aligned to 16 bytes. Copies t if
/// necessary, since a view may begin at any address.
inline at::Tensor for_kernels(const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  return c.is_cuda() && !is_aligned(c.const_data_ptr(), 16) ? c.clone() : c;
}

/// Returns a contiguous tensor as a matrix whose rows lie along the tensor's last dim.
inline Matrix matrix_of(const at::Tensor& t) {
  return {t.const_data_ptr(), t.size(-1), element_of(t.scalar_type())};
}
/// Returns the dtype in which a kernel writes a weight's gradient: the dtype of the leaf's
/// gradient, or the compute dtype if autocast inserts a cast. Returns float32 if kernels do not
/// write that dtype.
inline at::ScalarType kernel_grad_dtype(const Variable& weight) {
  const Precision* kept = precision_of(weight);
  const at::ScalarType compute = mode().compute;
  const bool cast_between =
      kept != nullptr && compute != at::kFloat && !kept->low.defined() && weight.dtype() != compute;
  const at::ScalarType dtype = cast_between      ? compute
                               : kept != nullptr ? kept->grad_dtype
                                                 : weight.dtype();
  return weight.data().is_cuda() || kernel_dtype(dtype) ? dtype : at::kFloat;
}
/// Returns the dtype in which autocast will pass x and the weight of a linear layer to an op, or
/// nullopt if no fused op can take them: if x or the weight is empty or float64, if the weight is
/// quantized or in fp8, or if their dtypes differ and autocast is off.
inline std::optional<at::ScalarType> fused_linear_dtype(const Variable& x, const Variable& weight) {
  const Precision* kept = precision_of(weight);
  if (kept != nullptr && (kept->quantized || (kept->fp8 && mode().fp8))) return std::nullopt;
  if (x.numel() == 0 || weight.numel() == 0 || x.dtype() == at::kDouble ||
      weight.dtype() == at::kDouble)
    return std::nullopt;
  if (mode().compute != at::kFloat) return mode().compute;
  return weight.dtype() == x.dtype() ? std::optional(x.dtype()) : std::nullopt;
}
/// Returns whether a fused op can take x and the weight with the CPU kernels.
inline bool can_fuse_linear_cpu(const Variable& x, const Variable& weight) {
  const auto dtype = fused_linear_dtype(x, weight);
  return dtype && x.data().is_cpu() && kernel_dtype(*dtype);
}
/// Returns whether a fused op can take x and the weight with the GPU kernels.
inline bool can_fuse_linear_gpu(const Variable& x, const Variable& weight) {
  return fused_linear_dtype(x, weight).has_value() && x.data().is_cuda() && kernels_enabled();
}
/// Returns t in contiguous float32; an undefined tensor stays undefined.
inline at::Tensor as_float(const at::Tensor& t) {
  return t.defined() ? for_kernels(t.to(at::kFloat)) : t;
}
inline const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

}  // namespace lathe
