// Products of few rows: what a model computes to write one token. They are bound by reading the
// weight, so it is read once, in order, and transposed in registers; nothing is packed.
//
// 8-bit and 4-bit weights are decoded in registers, along a row. Their sums have another order
// than gemm's, and codes are not rounded to bfloat16 in between.
#pragma once

#include <cstdint>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Rows of a product that are few.
constexpr int64_t few_rows = 8;

/// Whether gemv_nt takes a [m, k] and b [n, k] of these types. gemv_few_bits takes an a that goes
/// with float32.
bool gemv_ready(Element a, Element b, int64_t m);
/// a [m, k] times the transpose of b [n, k], then `e`: what gemm_nt gives, to the bit where it
/// multiplies in float32 (in the order of its sums, `step` products deep).
void gemv_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, int64_t step, const Epilogue& e);

/// A matrix [n, k] in few bits, k a multiple of 64: each 64 elements of a row have a scale.
struct QuantizedView {
  const void* codes =
      nullptr;  ///< a byte each, signed; or 4 bits each, the first of two in the upper half
  const float* levels =
      nullptr;  ///< of 4 bits: what the 16 codes stand for; null: bytes, which are the levels
  const void* scales =
      nullptr;  ///< float32 a block; or bytes, signed, where scale_scales is not null
  const float* scale_scales = nullptr;  ///< of 256 blocks each
  float scale_mean = 0;                 ///< added to such scales
};
/// a [m, k] times the transpose of the matrix [n, k], then `e`. Sums are along a row's blocks, in
/// float32. m <= few_rows.
void gemv_few_bits(Matrix a, const QuantizedView& b, int64_t m, int64_t n, int64_t k,
                   const Epilogue& e);

}  // namespace lathe
