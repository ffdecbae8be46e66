// Activations, element by element, in float32 whatever the elements are (float32 or bfloat16, all
// alike).
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// dx = dy gelu'(x), the tanh form (Hendrycks and Gimpel 2016); dx may be dy.
void gelu_backward(const void* x, const void* dy, void* dx, Element type, int64_t n);
/// SwiGLU (Shazeer 2020): y [rows, h] = silu(a) b of x [rows, 2 h], a the first half of a row and b
/// the second.
void swiglu_forward(const void* x, void* y, Element type, int64_t rows, int64_t h);
/// da = dy b silu'(a), db = dy silu(a). Rows of a, b, da and db are `stride` apart, those of dy h.
void swiglu_backward(const void* a, const void* b, const void* dy, void* da, void* db, Element type,
                     int64_t rows, int64_t h, int64_t stride);

}  // namespace lathe
