// Implements the functions of pack.h. Memory bandwidth limits the speed of packing. On 2 cores of a
// Zen 4, with weights larger than the last-level cache, a thread reads a panel of a weight (128
// bytes of each row) at 6 to 8 GB/s, adjacent rows with prefetching (for x W^T) at 9 GB/s, and
// complete rows in order at 25 to 29 GB/s.
#include "core/kernels/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/pack.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/simd-inl.h"
#include "core/kernels/transpose-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
constexpr int64_t blocks = transposed_blocks;

/// Writes columns 0 to 3 of 4 * `blocks` rows of `in` as four rows of `out`.
HWY_INLINE void transpose_rows(const char* in, int64_t stride, uint32_t* out, int64_t out_stride) {
  const Units d;
  const Columns c = load_columns(in, stride);
  hn::StoreU(c.v0, d, out);
  hn::StoreU(c.v1, d, out + out_stride);
  hn::StoreU(c.v2, d, out + 2 * out_stride);
  hn::StoreU(c.v3, d, out + 3 * out_stride);
}
#endif

uint32_t read32(const char* p) {
  uint32_t x = 0;
  std::memcpy(&x, p, sizeof x);
  return x;
}

/// Sets out[j * out_stride + i] = in[i * stride + j] for i < rows, j < columns, in units of 4
/// bytes; `stride` is in bytes.
void transpose32(const char* in, int64_t stride, int64_t rows, int64_t columns, uint32_t* out,
                 int64_t out_stride) {
  constexpr int64_t strip = 16;  // number of columns processed together, so that their output rows
                                 // stay in the nearest cache

  for (int64_t j0 = 0; j0 < columns; j0 += strip) {
    const int64_t j1 = j0 + strip < columns ? j0 + strip : columns;
    [[maybe_unused]] const int64_t ahead =
        j1 < columns ? j1 * 4 + 64 : 0;  // offset in bytes of the strip to prefetch; 0: none

    int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; i + 4 * blocks <= rows; i += 4 * blocks) {
      int64_t j = j0;
      // The loop reads the same strip of one row after another, so the hardware does not prefetch
      // later strips of the same rows. Prefetch them explicitly.
      if (ahead > 0) {
        for (int64_t r = i; r < i + 4 * blocks; ++r) hwy::Prefetch(in + r * stride + ahead);
      }
      for (; j + 4 <= j1; j += 4)
        transpose_rows(in + i * stride + j * 4, stride, out + j * out_stride + i, out_stride);
      for (; j < j1; ++j) {
        for (int64_t r = i; r < i + 4 * blocks; ++r)
          out[j * out_stride + r] = read32(in + r * stride + j * 4);
      }
    }
#endif

    for (; i < rows; ++i) {
      for (int64_t j = j0; j < j1; ++j) out[j * out_stride + i] = read32(in + i * stride + j * 4);
    }
  }
}

/// Sets out[2 j] = first[j] and out[2 j + 1] = second[j] for j < columns. If `second` is null, sets
/// out[2 j + 1] = 0.
void interleave16(const uint16_t* first, const uint16_t* second, int64_t columns, uint16_t* out) {
  const DU whole;
  const hn::Rebind<uint16_t, DU> half;
  int64_t j = 0;
  for (; j + lanes() <= columns; j += lanes()) {
    auto both = hn::PromoteTo(whole, hn::LoadU(half, first + j));
    if (second != nullptr)
      both = hn::Or(both, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::LoadU(half, second + j))));
    // In little-endian order, the element of the first row comes first.
    hn::StoreU(both, whole, reinterpret_cast<uint32_t*>(out + 2 * j));
  }
  for (; j < columns; ++j) {
    out[2 * j] = first[j];
    out[2 * j + 1] = second == nullptr ? uint16_t{0} : second[j];
  }
}

void widen_rows(Matrix a, int64_t rows, int64_t columns, float* out, int64_t stride) {
  with_element(a.type, [&](auto t) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      const auto* in = static_cast<const decltype(t)*>(a.at(r, 0));
      for_vectors(columns,
                  [&](int64_t i, auto part) HWY_ATTR { part(part(in + i), out + r * stride + i); });
    }
  });
}

/// Writes the transpose of a [rows, columns] in float32, which means out[j * out_stride + i] =
/// a[i][j].
void widen_transposed(Matrix a, int64_t rows, int64_t columns, float* out, int64_t out_stride) {
  constexpr int64_t tile = 64;
  float wide[tile * tile];
  for (int64_t i = 0; i < rows; i += tile) {
    for (int64_t j = 0; j < columns; j += tile) {
      const int64_t high = rows - i < tile ? rows - i : tile,
                    long_ = columns - j < tile ? columns - j : tile;
      widen_rows({a.at(i, j), a.stride, a.type}, high, long_, wide, tile);
      transpose32(reinterpret_cast<const char*>(wide), tile * 4, high, long_,
                  reinterpret_cast<uint32_t*>(out + j * out_stride + i), out_stride);
    }
  }
}

/// Sets columns [n, width) of a packed right factor of depth k to zero. An element of a packed row
/// has 4 bytes: it is a float32 or a pair of 16-bit numbers.
void clear_padding(void* out, int64_t k, int64_t n, int64_t width, Element as) {
  if (width == n) return;
  for (int64_t i = 0; i < (as == Element::f32 ? k : (k + 1) / 2); ++i)
    std::memset(static_cast<uint32_t*>(out) + i * width + n, 0, static_cast<size_t>(width - n) * 4);
}

void right(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as) {
  if (as == Element::f32) {
    widen_rows(b, k, n, static_cast<float*>(out), width);
  } else {
    for (int64_t i = 0; i < k; i += 2) {
      interleave16(static_cast<const uint16_t*>(b.at(i, 0)),
                   i + 1 < k ? static_cast<const uint16_t*>(b.at(i + 1, 0)) : nullptr, n,
                   static_cast<uint16_t*>(out) + i * width);
    }
  }
  clear_padding(out, k, n, width, as);
}

void right_transposed(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as) {
  clear_padding(out, k, n, width, as);
  if (as != b.type) return widen_transposed(b, n, k, static_cast<float*>(out), width);
  const bool low = b.type != Element::f32;
  const int64_t units = low ? k / 2 : k;
  auto* to = static_cast<uint32_t*>(out);
  transpose32(static_cast<const char*>(b.data), b.stride * (low ? 2 : 4), n, units, to, width);
  if (low && k % 2 != 0) {
    for (int64_t j = 0; j < n; ++j)
      to[units * width + j] = *static_cast<const uint16_t*>(b.at(j, k - 1));
  }
}

void left_transposed(Matrix a, int64_t k, int64_t m, void* out, Element as) {
  if (as != a.type) return widen_transposed(a, k, m, static_cast<float*>(out), k);

  if (a.type == Element::f32) {
    transpose32(static_cast<const char*>(a.data), a.stride * 4, k, m, static_cast<uint32_t*>(out),
                k);
    return;
  }

  // Interleave pairs of rows a few at a time, then transpose them as units of 4 bytes.
  constexpr int64_t pairs = 16, columns = 64;
  uint16_t pair[pairs * columns * 2];

  const int64_t depth = (k + 1) / 2;
  for (int64_t i = 0; i < depth; i += pairs) {
    const int64_t have = depth - i < pairs ? depth - i : pairs;
    for (int64_t j = 0; j < m; j += columns) {
      const int64_t n = m - j < columns ? m - j : columns;
      // If the depth is odd, the last pair has no second row. Zeros replace this row.
      for (int64_t p = 0; p < have; ++p) {
        const int64_t row = 2 * (i + p);
        interleave16(static_cast<const uint16_t*>(a.at(row, j)),
                     row + 1 < k ? static_cast<const uint16_t*>(a.at(row + 1, j)) : nullptr, n,
                     pair + p * columns * 2);
      }
      transpose32(reinterpret_cast<const char*>(pair), columns * 4, have, n,
                  static_cast<uint32_t*>(out) + j * depth + i, depth);
    }
  }
}

}  // namespace
}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(right);
HWY_EXPORT(right_transposed);
HWY_EXPORT(left_transposed);
HWY_EXPORT(widen_rows);

void pack_right(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as) {
  HWY_DYNAMIC_DISPATCH(right)(b, k, n, width, out, as);
}
void pack_right_transposed(Matrix b, int64_t k, int64_t n, int64_t width, void* out, Element as) {
  HWY_DYNAMIC_DISPATCH(right_transposed)(b, k, n, width, out, as);
}
void pack_left_transposed(Matrix a, int64_t k, int64_t m, void* out, Element as) {
  HWY_DYNAMIC_DISPATCH(left_transposed)(a, k, m, out, as);
}
void widen(Matrix a, int64_t rows, int64_t columns, float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(widen_rows)(a, rows, columns, out, stride);
}

}  // namespace lathe
#endif
