#include "core/kernels/row_ops.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_ops.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Returns the sum of the vectors f(i, part) over [0, n). `part` is as in for_vectors(). There are
/// four independent running sums, which hides the latency of additions. f must return 0 in lanes
/// beyond n.
template <class F>
HWY_INLINE V sum_of_block(int64_t n, F&& f) {
  const int64_t step = lanes();
  V a = set(0), b = set(0), c = set(0), d = set(0);
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    a = hn::Add(a, f(i, Whole()));
    b = hn::Add(b, f(i + step, Whole()));
    c = hn::Add(c, f(i + 2 * step, Whole()));
    d = hn::Add(d, f(i + 3 * step, Whole()));
  }
  for (; i + step <= n; i += step) a = hn::Add(a, f(i, Whole()));
  if (i < n) b = hn::Add(b, f(i, Part{n - i}));
  return hn::Add(hn::Add(a, b), hn::Add(c, d));
}

/// Returns the sum of f over [0, n). Each block is summed separately before the sums of blocks are
/// added, so that the rounding error of a long row grows only with the number of its blocks.
template <class F>
HWY_INLINE float sum_of_row(int64_t n, F&& f) {
  constexpr int64_t block = 1024;
  V sum = sum_of_block(std::min(n, block), f);
  for (int64_t first = block; first < n; first += block)
    sum = hn::Add(sum, sum_of_block(std::min(n - first, block), [&](int64_t i, auto part) HWY_ATTR {
                    return f(first + i, part);
                  }));
  return sum_of(sum);
}

void sum_each(const float* x, int64_t stride, int64_t rows, int64_t columns, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += stride)
    y[r] = sum_of_row(columns, [&](int64_t i, auto part) HWY_ATTR { return part(x + i); });
}

/// Returns the largest of n elements, in all lanes. May ignore NaN.
HWY_INLINE V largest_of_row(const float* x, int64_t n) {
  V largest = set(-INFINITY);
  for_vectors(n, [&](int64_t i, auto part)
                     HWY_ATTR { largest = hn::Max(part.keep_or(part(x + i), largest), largest); });
  return set(max_of(largest));
}

void softmax_each(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    const V m = largest_of_row(x, columns);  // if this ignores a NaN, the sum below is still NaN
    const float sum = sum_of_row(columns, [&](int64_t i, auto part) HWY_ATTR {
      const V e = part.keep(exp_of(hn::Sub(part(x + i), m)));
      part(e, y + i);
      return e;
    });

    const V inverse = set(1 / sum);
    for_vectors(columns,
                [&](int64_t i, auto part) HWY_ATTR { part(hn::Mul(part(y + i), inverse), y + i); });
  }
}

void softmax_gradient_each(const float* dy, const float* y, int64_t rows, int64_t columns,
                           float* dx) {
  for (int64_t r = 0; r < rows; ++r, dy += columns, y += columns, dx += columns) {
    const V sum = set(sum_of_row(columns, [&](int64_t i, auto part) HWY_ATTR {
      return hn::Mul(part(y + i), part(dy + i));
    }));
    for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
      part(hn::Mul(part(y + i), hn::Sub(part(dy + i), sum)), dx + i);
    });
  }
}

void log_softmax_each(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    const V m = largest_of_row(x, columns);
    const float sum = sum_of_row(columns, [&](int64_t i, auto part) HWY_ATTR {
      return part.keep(exp_of(hn::Sub(part(x + i), m)));
    });
    const V log_sum = set(std::log(sum));
    for_vectors(columns, [&](int64_t i, auto part)
                             HWY_ATTR { part(hn::Sub(hn::Sub(part(x + i), m), log_sum), y + i); });
  }
}

void log_softmax_gradient_each(const float* dy, const float* y, int64_t rows, int64_t columns,
                               float* dx) {
  for (int64_t r = 0; r < rows; ++r, dy += columns, y += columns, dx += columns) {
    const V sum =
        set(sum_of_row(columns, [&](int64_t i, auto part) HWY_ATTR { return part(dy + i); }));
    for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
      part(hn::NegMulAdd(exp_of(part(y + i)), sum, part(dy + i)), dx + i);
    });
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(sum_each);
HWY_EXPORT(softmax_each);
HWY_EXPORT(softmax_gradient_each);
HWY_EXPORT(log_softmax_each);
HWY_EXPORT(log_softmax_gradient_each);

void sum_rows(const float* x, int64_t stride, int64_t rows, int64_t columns, float* y) {
  HWY_DYNAMIC_DISPATCH(sum_each)(x, stride, rows, columns, y);
}

void softmax_rows(const float* x, int64_t rows, int64_t columns, float* y) {
  HWY_DYNAMIC_DISPATCH(softmax_each)(x, rows, columns, y);
}

void softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                           float* dx) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_each)(dy, y, rows, columns, dx);
}

void log_softmax_rows(const float* x, int64_t rows, int64_t columns, float* y) {
  HWY_DYNAMIC_DISPATCH(log_softmax_each)(x, rows, columns, y);
}

void log_softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                               float* dx) {
  HWY_DYNAMIC_DISPATCH(log_softmax_gradient_each)(dy, y, rows, columns, dx);
}

}  // namespace lathe
#endif
