// Matrix products of few rows, as in generating one token. Reading the weight bounds their time, so
// it is read once, in order, and transposed in registers; nothing is packed.
//
// 8-bit and 4-bit weights are decoded in registers, along a row. Their sums have another order than
// gemm's, and codes are not rounded to bfloat16 in between.
#pragma once

#include <cstdint>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// The largest number of rows for these functions.
constexpr int64_t few_rows = 8;

/// Returns whether gemv_nt takes a [m, k] and b [n, k] of these types. gemv_quantized takes any a
/// that is accepted together with float32.
bool gemv_ready(Element a, Element b, int64_t m);
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`. Every `step` products along
/// k are summed separately, in the order of gemm_nt(). The result therefore has the same bits as
/// that of gemm_nt() if gemm_nt() multiplies in float32.
void gemv_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, int64_t step, const Epilogue& e);

/// A quantized matrix [n, k], k a multiple of 64: each 64 elements of a row have a scale.
struct QuantizedView {
  /// A signed byte each; or 4 bits each, the first of two in the upper half.
  const void* codes = nullptr;
  /// 4 bits: the values of the 16 codes; null: bytes, which are the values.
  const float* levels = nullptr;
  /// float32 for each block; or signed bytes, if scale_scales is not null.
  const void* scales = nullptr;
  const float* scale_scales = nullptr;  ///< one for 256 blocks
  float scale_mean = 0;                 ///< added to scales that are bytes
};
/// Computes a [m, k] times the transpose of the matrix [n, k], then `e`. Sums run along a row's
/// blocks, in float32. m <= few_rows.
void gemv_quantized(Matrix a, const QuantizedView& b, int64_t m, int64_t n, int64_t k,
                    const Epilogue& e);

}  // namespace lathe
