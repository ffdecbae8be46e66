// Implements matrix products of a few rows with a large matrix, which is read once, in place. This
// file is included in the same way as simd-inl.h. Products are added one after the other along k,
// as in the brgemm of gemm.h.
#if defined(LATHE_CORE_KERNELS_GEMV_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_GEMV_INL_H
#undef LATHE_CORE_KERNELS_GEMV_INL_H
#else
#define LATHE_CORE_KERNELS_GEMV_INL_H
#endif

#include "core/kernels/pack.h"
#include "core/kernels/simd-inl.h"
#include "core/kernels/transpose-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
/// Reads 16 bytes of each of the lanes() rows of a panel: 4 columns of float32, or 8 columns of
/// bfloat16. Calls f(column, values of all rows) for each of these columns in order.
template <class F>
HWY_INLINE void panel_columns(const float* w, int64_t stride, F&& f) {
  const auto c = load_columns(reinterpret_cast<const char*>(w), stride * 4);
  f(0, hn::BitCast(D(), c.v0));
  f(1, hn::BitCast(D(), c.v1));
  f(2, hn::BitCast(D(), c.v2));
  f(3, hn::BitCast(D(), c.v3));
}
template <class F>
HWY_INLINE void panel_columns(const c10::BFloat16* w, int64_t stride, F&& f) {
  const auto c = load_columns(reinterpret_cast<const char*>(w), stride * 2);
  const auto pair = [&](int64_t i, hn::Vec<DU> both)
                        HWY_ATTR {  // little-endian: the first column is the lower half
                          f(i, hn::BitCast(D(), hn::ShiftLeft<16>(both)));
                          f(i + 1, hn::BitCast(D(), hn::And(both, hn::Set(DU(), 0xffff0000u))));
                        };
  pair(0, c.v0);
  pair(2, c.v1);
  pair(4, c.v2);
  pair(6, c.v3);
}

/// Computes out[m][r] = sum over k of x[m][k] w[r][k] for M rows of x, and for panels * lanes()
/// rows of w, which are `stride` elements apart. Every `step` columns are summed separately, and
/// these sums are then added in order.
///
/// Complete cache lines are read: one line of each row of a panel, then the next line of each row.
/// Rows whose stride is a power of two map to few sets of the cache, so a line would be evicted
/// before it is read a second time. If `more` is true, the same number of rows after these is
/// prefetched meanwhile. The prefetches run along one row after the other, so that they are spread
/// over all sets, and the hardware prefetcher continues them.
template <class T, int M, int panels>
HWY_INLINE void few_rows_panels(const T* w, int64_t stride, int64_t k, int64_t step, const float* x,
                                int64_t x_stride, float* out, int64_t out_stride, bool more) {
  constexpr int64_t at_once = 16 / sizeof(T), line = 64 / sizeof(T);
  const int64_t rows = lanes();
  const T* next = w + panels * rows * stride;  // the row that is prefetched; its elements up to
                                               // next_at are prefetched already
  int64_t next_at = 0;
  for (int64_t begin = 0; begin < k; begin += step) {
    const int64_t end = begin + step < k ? begin + step : k;

    V sum[M * panels];
    for (V& s : sum) s = set(0);
    const auto add = [&](int p, int64_t i, V column) HWY_ATTR {
      for (int m = 0; m < M; ++m)
        sum[m * panels + p] = hn::MulAdd(set(x[m * x_stride + i]), column, sum[m * panels + p]);
    };

    // Read complete cache lines of each row, and at the end complete groups of 16 bytes.
    int64_t i = begin;
    while (i + at_once <= end) {
      const int64_t stop = i + line <= end ? i + line : i + (end - i) / at_once * at_once;
      for (int p = 0; p < panels; ++p) {
        for (int64_t at = i; at < stop; at += at_once) {
          panel_columns(w + p * rows * stride + at, stride,
                        [&](int64_t c, V column) HWY_ATTR { add(p, at + c, column); });
        }
        for (int64_t r = 0; more && r < rows; ++r) {
          hwy::Prefetch(next + next_at);
          next_at += line;
          if (next_at >= k) {
            next += stride;
            next_at = 0;
          }
        }
      }
      i = stop;
    }

    // Gather the last columns, which don't fill 16 bytes, one at a time.
    for (; i < end; ++i) {
      for (int p = 0; p < panels; ++p) {
        float column[HWY_MAX_BYTES / sizeof(float)];
        for (int64_t r = 0; r < rows; ++r)
          column[r] = static_cast<float>(w[(p * rows + r) * stride + i]);
        add(p, i, load(column));
      }
    }

    for (int m = 0; m < M; ++m) {
      for (int p = 0; p < panels; ++p) {
        float* to = out + m * out_stride + p * rows;
        store(begin == 0 ? sum[m * panels + p] : hn::Add(sum[m * panels + p], load(to)), to);
      }
    }
  }
}

/// Computes the same products as few_rows_panels(), for any number of rows of w. few_rows_panels()
/// reads w and writes `out` in complete panels. Therefore, the rows of an incomplete last panel are
/// copied to `space` [lanes()][k] and padded with zeros, and `out` must have space for a complete
/// last panel. `beyond` is the number of rows that follow these rows in w, and may be prefetched.
template <class T, int M>
void few_rows_of(const T* w, int64_t stride, int64_t rows, int64_t k, int64_t step, const float* x,
                 int64_t x_stride, float* out, int64_t out_stride, T* space, int64_t beyond) {
  const int64_t panel = lanes();
  int64_t r = 0;
  const auto more = [&](int64_t n) { return r + 2 * n <= rows + beyond; };
  for (; r + 2 * panel <= rows; r += 2 * panel)
    few_rows_panels<T, M, 2>(w + r * stride, stride, k, step, x, x_stride, out + r, out_stride,
                             more(2 * panel));
  for (; r + panel <= rows; r += panel)
    few_rows_panels<T, M, 1>(w + r * stride, stride, k, step, x, x_stride, out + r, out_stride,
                             false);
  if (r == rows) return;
  for (int64_t i = 0; i < panel; ++i) {
    T* to = space + i * k;
    if (r + i < rows)
      std::memcpy(to, w + (r + i) * stride, static_cast<size_t>(k) * sizeof(T));
    else
      std::memset(static_cast<void*>(to), 0, static_cast<size_t>(k) * sizeof(T));
  }
  few_rows_panels<T, M, 1>(space, k, k, step, x, x_stride, out + r, out_stride, false);
}

/// Calls f with the smallest of the constants 1, 2, 4 and 8 that is at least m.
template <class F>
HWY_INLINE void with_few(int64_t m, F&& f) {
  if (m <= 1) return f(std::integral_constant<int, 1>());
  if (m <= 2) return f(std::integral_constant<int, 2>());
  if (m <= 4) return f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, 8>());
}
#endif

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
