// Declares matrix products of a few rows with a weight, which are used to generate one token. Most
// of their time is spent on reading the weight. The weight is therefore read once, in order, and
// transposed in registers; nothing is packed.
//
// 8-bit and 4-bit weights are decoded in registers, along a row. For quantized weights, the order
// of additions differs from gemm(), and the decoded weights are not rounded to bfloat16.
#pragma once

#include <cstdint>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// The largest number m of rows that these functions support.
constexpr int64_t max_gemv_rows = 8;

/// Returns whether gemv_nt() supports a [m, k] and b [n, k] of the types `a` and `b`.
/// gemv_quantized() supports a left factor of type `a` if gemv_ready(a, Element::f32, m) is true.
bool gemv_ready(Element a, Element b, int64_t m);
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`. Every `step` products along
/// k are summed separately, in the order of gemm_nt(). If gemm_nt() multiplies in float32, the
/// results of both functions are therefore bitwise equal.
void gemv_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, int64_t step, const Epilogue& e);

/// A quantized matrix [n, k], where k is a multiple of 64. Each block of 64 elements of a row has a
/// scale. The arrays are not owned.
struct QuantizedView {
  /// The codes of the elements. A code is a signed byte, or has 4 bits; the first of two 4-bit
  /// codes is in the upper half of a byte.
  const void* codes = nullptr;
  /// For 4-bit codes, the values of the 16 codes. Null if the codes are signed bytes, which are the
  /// values themselves.
  const float* levels = nullptr;
  /// The scale of each block: float32, or a signed byte if scale_scales is not null.
  const void* scales = nullptr;
  const float* scale_scales = nullptr;  ///< factors of the scales that are stored as bytes, one for
                                        ///< each 256 blocks
  float scale_mean = 0;                 ///< number that is added to scales that are stored as bytes
};
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`. Sums are accumulated in
/// float32, along the blocks of a row. m must be at most max_gemv_rows.
void gemv_quantized(Matrix a, const QuantizedView& b, int64_t m, int64_t n, int64_t k,
                    const Epilogue& e);

}  // namespace lathe
