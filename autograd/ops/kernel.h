// Between ops and the CPU kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "autograd/node.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/kernels/pack.h"
#include "core/mode.h"

namespace lathe {

/// Whether the CPU kernels take tensors of this dtype: float32, bfloat16 and float16 where the
/// machine has the instructions for float32's at least.
inline bool kernel_dtype(at::ScalarType dtype) {
  return (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
         gemm_ready(element_of(dtype));
}
/// The same for a tensor, which must be on the CPU and not empty.
inline bool kernel_ready(const at::Tensor& t) {
  return t.is_cpu() && kernel_dtype(t.scalar_type()) && t.numel() > 0;
}

/// The same for the kernels of core/kernels/*.cu: on a GPU.
inline bool card_kernel_ready(const at::Tensor& t) {
  const at::ScalarType d = t.scalar_type();
  return t.is_cuda() && kernels_wanted() && t.numel() > 0 &&
         (d == at::kFloat || d == at::kBFloat16 || d == at::kHalf);
}

/// Contiguous, and on a GPU at a multiple of 16 bytes, as its kernels load: a view may begin
/// anywhere.
inline at::Tensor for_kernels(const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  return c.is_cuda() && reinterpret_cast<uintptr_t>(c.const_data_ptr()) % 16 != 0 ? c.clone() : c;
}

/// A contiguous tensor as rows of its last dim.
inline Matrix matrix_of(const at::Tensor& t) {
  return {t.const_data_ptr(), t.size(-1), element_of(t.scalar_type())};
}
/// The dtype in which a kernel makes a weight's gradient: what its leaf keeps, or the dtype of the
/// cast that autocast puts between, where kernels write that; else float32.
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
/// The dtype in which autocast will hand x and the weight of a linear layer to an op, where a fused
/// op could take them: not empty, no float64, and a weight that is neither quantized nor in fp8.
inline std::optional<at::ScalarType> fused_linear_dtype(const Variable& x, const Variable& weight) {
  const Precision* kept = precision_of(weight);
  if (kept != nullptr && (kept->quantised || (kept->fp8 && mode().fp8))) return std::nullopt;
  if (x.numel() == 0 || weight.numel() == 0 || x.dtype() == at::kDouble ||
      weight.dtype() == at::kDouble)
    return std::nullopt;
  if (mode().compute != at::kFloat) return mode().compute;
  return weight.dtype() == x.dtype() ? std::optional(x.dtype()) : std::nullopt;
}
/// Whether a fused op takes them with the CPU's kernels, or with those for GPUs.
inline bool kernel_linear(const Variable& x, const Variable& weight) {
  const auto dtype = fused_linear_dtype(x, weight);
  return dtype && x.data().is_cpu() && kernel_dtype(*dtype);
}
inline bool card_linear(const Variable& x, const Variable& weight) {
  return fused_linear_dtype(x, weight).has_value() && x.data().is_cuda() && kernels_wanted();
}
/// A tensor, or an undefined one, in contiguous float32.
inline at::Tensor as_float(const at::Tensor& t) {
  return t.defined() ? for_kernels(t.to(at::kFloat)) : t;
}
inline const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

}  // namespace lathe
