// Between ops and the CPU kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/dtype.h"
#include "core/kernels/pack.h"
#include "core/kernels/product.h"

namespace lathe {

/// Whether the CPU kernels take tensors of this dtype: float32 and bfloat16 where the machine has the instructions.
inline bool kernel_dtype(at::ScalarType dtype) {
  return (dtype == at::kFloat && product_ready(Element::f32)) ||
         (dtype == at::kBFloat16 && product_ready(Element::bf16));
}
/// The same for a tensor, which must be on the CPU and not empty.
inline bool kernel_ready(const at::Tensor& t) { return t.is_cpu() && kernel_dtype(t.scalar_type()) && t.numel() > 0; }

/// A contiguous tensor as rows of its last dim.
inline Matrix matrix_of(const at::Tensor& t) { return {t.const_data_ptr(), t.size(-1), element_of(t.scalar_type())}; }
inline const float* floats_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

}  // namespace lathe
