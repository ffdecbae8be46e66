// Rearranging blocks of matrices into the order in which products read them.
//
// A product's right factor is read as [k][n] in float32, and in bfloat16 as [k / 2][n][2]: pairs
// along k side by side (the layout of the CPUs' dot-product instructions, "VNNI").
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Of float32, bfloat16 and float16.
inline int64_t bytes_of(Element type) { return type == Element::f32 ? 4 : 2; }

/// A row-major matrix in memory. `stride` elements lie between the starts of two rows.
struct Matrix {
  const void* data = nullptr;
  int64_t stride = 0;
  Element type = Element::f32;

  /// The address of an element.
  const void* at(int64_t row, int64_t column) const {
    return static_cast<const char*>(data) + (row * stride + column) * bytes_of(type);
  }
};

/// k rounded up to what a packed factor holds: whole pairs.
inline int64_t packed_depth(int64_t k, Element type) {
  return type == Element::f32 ? k : (k + 1) / 2 * 2;
}

// The packed elements are of type `as`: the matrix's own, or float32 for products that are taken in
// it.

/// Packs b [k, n] as a right factor whose rows are `width` >= n long; what is beyond k and n is
/// zero.
void pack_right(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// The same from its transpose, b [n, k].
void pack_right_transposed(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as);
/// Transposes a [k, m] into rows of packed_depth(k) as a left factor, out [m][packed_depth(k)];
/// what is beyond k is zero.
void pack_left_transposed(Matrix a, int64_t k, int64_t m, void* out, Element as);
/// Copies a [rows, columns] as float32, rows `stride` apart.
void widen(Matrix a, int64_t rows, int64_t columns, float* out, int64_t stride);

}  // namespace lathe
