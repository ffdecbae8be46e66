// Matrix products of a few rows with a weight, as for generating one token. Their time is that of
// reading the weight, so the weight is read once, in order, and transposed in registers; nothing is
// packed.
//
// 8-bit and 4-bit weights are decoded in registers, along a row. Their products are added in
// another order than in gemm(), and decoded weights are not rounded to bfloat16.
#pragma once

#include <cstdint>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// The largest number of rows for these functions.
constexpr int64_t max_gemv_rows = 8;

/// Returns whether gemv_nt() takes a [m, k] and b [n, k] of these types. gemv_quantized() takes an
/// `a` for which gemv_ready(a, Element::f32, m) is true.
bool gemv_ready(Element a, Element b, int64_t m);
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`. Every `step` products along
/// k are summed separately, in the order of gemm_nt(). The result therefore has the same bits as
/// that of gemm_nt() if gemm_nt() multiplies in float32.
void gemv_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, int64_t step, const Epilogue& e);

/// A quantized matrix [n, k], where k is a multiple of 64. Each block of 64 elements of a row has a
/// scale. The arrays are not owned.
struct QuantizedView {
  /// The codes of the elements: a signed byte each, or 4 bits each, where the first of two codes is
  /// in the upper half of a byte.
  const void* codes = nullptr;
  /// For 4-bit codes, the values of the 16 codes. Null for signed bytes, which are the values
  /// themselves.
  const float* levels = nullptr;
  /// The scale of each block: float32 or, if scale_scales is not null, a signed byte.
  const void* scales = nullptr;
  const float* scale_scales = nullptr;  ///< one for each 256 blocks
  float scale_mean = 0;                 ///< added to scales that are stored as bytes
};
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`. Sums are in float32, along
/// the blocks of a row. m must be at most max_gemv_rows.
void gemv_quantized(Matrix a, const QuantizedView& b, int64_t m, int64_t n, int64_t k,
                    const Epilogue& e);

}  // namespace lathe
