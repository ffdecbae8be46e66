// Declares activation functions, which are computed element by element in float32. All arrays of a
// call have the same type: float32, bfloat16 or float16.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Computes y = gelu(x) in the tanh form. The result is bitwise equal to GELU in a matmul's
/// epilogue (core/kernels/epilogue.h).
void gelu_forward(const void* x, void* y, Element type, int64_t n);
/// Computes dx = dy gelu'(x) for the tanh form (Hendrycks and Gimpel 2016). dx may be dy.
void gelu_backward(const void* x, const void* dy, void* dx, Element type, int64_t n);
/// Computes SwiGLU (Shazeer 2020): y [rows, h] = silu(a) b. Each row of x [rows, 2 h] holds a in
/// its first half and b in its second half.
void swiglu_forward(const void* x, void* y, Element type, int64_t rows, int64_t h);
/// Computes y = silu(a) b for n elements. The result is bitwise equal to SwiGLU in a matmul's
/// epilogue.
void swiglu_product(const void* a, const void* b, void* y, Element type, int64_t n);
/// Computes da = dy b silu'(a) and db = dy silu(a). Rows of a, b, da and db are `stride` elements
/// apart, and rows of dy are h elements apart.
void swiglu_backward(const void* a, const void* b, const void* dy, void* da, void* db, Element type,
                     int64_t rows, int64_t h, int64_t stride);
/// Returns whether the kernels of swiglu.cuh support matrices of these sizes. The kernels process
/// packs of 16 bytes: h and `stride` must consist of complete packs, and a matrix must have at most
/// 2^31 - 1 packs.
inline bool swiglu_on_gpu(Element type, int64_t rows, int64_t h, int64_t stride) {
  const int64_t pack = 16 / bytes_of(type);
  return type != Element::f64 && h > 0 && h % pack == 0 && stride % pack == 0 &&
         rows * stride / pack <= INT32_MAX;
}

}  // namespace lathe
