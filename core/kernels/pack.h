// Rearranges blocks of matrices into the order in which matmuls read them.
//
// A product's right factor is read as [k][n] in float32, and in bfloat16 as [k / 2][n][2]: pairs
// along k side by side (the layout of the CPUs' dot-product instructions, "VNNI").
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// A row-major matrix in memory. `stride` elements lie between the starts of two rows.
struct Matrix {
  const void* data = nullptr;
  int64_t stride = 0;
  Element type = Element::f32;

  /// Returns the address of an element.
  const void* at(int64_t row, int64_t column) const {
    return static_cast<const char*>(data) + (row * stride + column) * bytes_of(type);
  }
};

/// Returns k rounded up to the depth of a packed factor: whole pairs.
inline int64_t packed_depth(int64_t k, Element type) {
  return type == Element::f32 ? k : (k + 1) / 2 * 2;
}

// The packed elements have type `as`: the matrix's own, or float32 for matmuls that are computed in
// it.

/// Packs b [k, n] as a right factor whose rows are `width` >= n long, with zeros beyond k and n.
void pack_right(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// Packs the transpose of b [n, k] in the same way.
void pack_right_transposed(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// Transposes a [k, m] into rows of packed_depth(k) as a left factor, out [m][packed_depth(k)],
/// with zeros beyond k.
void pack_left_transposed(Matrix a, int64_t k, int64_t m, void* out, Element as);
/// Copies a [rows, columns] as float32, rows `stride` apart.
void widen(Matrix a, int64_t rows, int64_t columns, float* out, int64_t stride);

}  // namespace lathe
