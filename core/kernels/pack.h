// Declares functions that rearrange blocks of matrices into the order in which matmuls read them.
//
// A right factor [k, n] of a matmul has the layout [k][n] in float32 and [k / 2][n][2] in bfloat16,
// where pairs of elements along k are adjacent. The dot-product instructions of CPUs read this
// layout, which is called "VNNI".
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// A row-major matrix in memory. This object does not own the memory. `stride` is the distance
/// between the beginnings of two rows, in elements.
struct Matrix {
  const void* data = nullptr;
  int64_t stride = 0;
  Element type = Element::f32;

  /// Returns the address of the element at (row, column).
  const void* at(int64_t row, int64_t column) const {
    return static_cast<const char*>(data) + (row * stride + column) * bytes_of(type);
  }
};

/// Returns the depth of a packed factor: k, rounded up to complete pairs unless `type` is float32.
inline int64_t packed_depth(int64_t k, Element type) {
  return type == Element::f32 ? k : (k + 1) / 2 * 2;
}

// The following functions pack elements in the type `as`: the type of the matrix, or float32 for
// matmuls that are computed in float32.

/// Packs b [k, n] as a right factor whose rows have `width` >= n elements, with zeros beyond k and
/// n.
void pack_right(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// Packs the transpose of b [n, k] in the same way.
void pack_right_transposed(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// Packs the transpose of a [k, m] as a left factor: `out` [m][packed_depth(k, as)], with zeros
/// beyond k.
void pack_left_transposed(Matrix a, int64_t k, int64_t m, void* out, Element as);
/// Converts a [rows, columns] to float32 and writes it to `out`, whose rows are `stride` elements
/// apart.
void widen(Matrix a, int64_t rows, int64_t columns, float* out, int64_t stride);

}  // namespace lathe
