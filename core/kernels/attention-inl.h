// Implements the vector loops over attention's blocks. This file is included in the same way as
// simd-inl.h.
#if defined(LATHE_CORE_KERNELS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_ATTENTION_INL_H
#undef LATHE_CORE_KERNELS_ATTENTION_INL_H
#else
#define LATHE_CORE_KERNELS_ATTENTION_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "core/kernels/gemv-inl.h"
#include "core/kernels/pack.h"
#include "core/kernels/rotary-inl.h"
#include "core/kernels/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Returns tanh(score scale / cap). The capped score is `cap` times this value.
HWY_INLINE V capped_part(V score, float scale, float cap) {
  const V x = hn::Mul(score, set(scale / cap));
  // Return NaN for NaN, whatever Highway's tanh returns.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(D(), x));
}

/// Computes one block of the online softmax. The rows of `scores` [rows, columns] are `stride`
/// elements apart. Row 0 belongs to the query at position q0, and column 0 to the key at position
/// k0. Writes exp(score scale - m) to p [rows, width], and zeros where the mask applies and in the
/// columns beyond `columns`. Updates the running maximum m [rows] and denominator l [rows], and
/// rescales the output acc [rows, wide] that the previous blocks accumulated. `is_first` is true if
/// there is no previous block. `starts` holds the position of the first key that each row sees;
/// null: each row sees all keys up to the position of its query. If `is_capped` is true, scores are
/// scaled and then capped by `cap`.
template <bool is_capped, class T>
void softmax_as(const float* scores, int64_t stride, int64_t rows, int64_t columns, int64_t width,
                int64_t q0, int64_t k0, const int64_t* starts, bool is_first, float scale,
                float cap, T* p, float* m, float* l, float* acc, int64_t wide) {
  const V s = set(scale), low = set(-INFINITY);
  for (int64_t r = 0; r < rows; ++r) {
    // A query sees the keys from the start of its document to the position of the query.
    const int64_t end = std::clamp<int64_t>(q0 + r - k0 + 1, 0, columns);
    const int64_t begin = starts == nullptr ? 0 : std::clamp<int64_t>(starts[r] - k0, 0, end);
    std::fill_n(p + r * width, begin, T(0.0f));
    const float* in = scores + r * stride + begin;
    T* out = p + r * width + begin;
    const int64_t seen = end - begin;

    // If a row sees no key of this block, its m and l stay the same.
    if (seen == 0) {
      std::fill(out, p + (r + 1) * width, T(0.0f));
      continue;
    }

    V top = low;
    for_vectors(seen, [&](int64_t i, auto part)
                          HWY_ATTR { top = hn::Max(top, part.keep_or(part(in + i), low)); });
    // Capping keeps the order of scores, so it is enough to cap the largest score afterwards.
    float largest = max_of(top) * scale;
    if constexpr (is_capped) largest = cap * std::tanh(largest / cap);
    const float before = m[r], now = std::max(before, largest);
    const V shift = set(now);

    // Compute exp(score scale - m) and the sum of these exponentials. Subtracting the new maximum
    // keeps them at 1 or below.
    V total = set(0);
    for_vectors(seen, [&](int64_t i, auto part) HWY_ATTR {
      V x = part(in + i), factor = s;
      if constexpr (is_capped) {
        x = capped_part(x, scale, cap);
        factor = set(cap);
      }
      const V e = part.keep(exp_of(hn::MulSub(x, factor, shift)));
      total = hn::Add(total, e);
      part(e, out + i);
    });
    std::fill(out + seen, p + (r + 1) * width, T(0.0f));

    // Earlier blocks used a smaller maximum. Rescale their denominator and output to the new
    // maximum.
    const float kept = before == -INFINITY ? 0.0f : std::exp(before - now);
    m[r] = now;
    l[r] = l[r] * kept + sum_of(total);
    if (kept == 1.0f || is_first) continue;
    const V factor = set(kept);
    float* a = acc + r * wide;
    for_vectors(wide,
                [&](int64_t i, auto part) HWY_ATTR { part(hn::Mul(part(a + i), factor), a + i); });
  }
}
void softmax_block(const float* scores, int64_t stride, int64_t rows, int64_t columns,
                   int64_t width, int64_t q0, int64_t k0, const int64_t* starts, bool is_first,
                   float scale, float cap, void* p, Element type, float* m, float* l, float* acc,
                   int64_t wide) {
  with_element(type, [&](auto t) HWY_ATTR {
    auto* to = static_cast<decltype(t)*>(p);
    if (cap == 0) {
      softmax_as<false>(scores, stride, rows, columns, width, q0, k0, starts, is_first, scale, cap,
                        to, m, l, acc, wide);
    } else {
      softmax_as<true>(scores, stride, rows, columns, width, q0, k0, starts, is_first, scale, cap,
                       to, m, l, acc, wide);
    }
  });
}

/// Sets each row r of `out` [rows, columns] to acc[r] / sum[r], or to acc[r] if `sum` is null.
void write_rows_of(const float* acc, int64_t wide, int64_t rows, int64_t columns, const float* sum,
                   Matrix out) {
  with_element(out.type, [&](auto t) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      auto* to = static_cast<decltype(t)*>(const_cast<void*>(out.at(r, 0)));
      const V factor = set(sum == nullptr ? 1.0f : 1.0f / sum[r]);
      for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
        part(hn::Mul(part(acc + r * wide + i), factor), to + i);
      });
    }
  });
}

/// Sets delta[r] to the dot product of row r of a and row r of b.
void dot_rows(Matrix a, Matrix b, int64_t rows, int64_t columns, float* delta) {
  with_element(a.type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    for (int64_t r = 0; r < rows; ++r) {
      V sum = set(0);
      for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
        sum = hn::MulAdd(part(static_cast<const T*>(a.at(r, 0)) + i),
                         part(static_cast<const T*>(b.at(r, 0)) + i), sum);
      });
      delta[r] = sum_of(sum);
    }
  });
}

/// Computes P and dS = P (dP - delta) scale from the scores and dP. All four are transposed blocks
/// [keys, queries]. Rows of the scores and of dP are `stride` elements apart. Rows of P and dS have
/// `width` elements, with zeros beyond the queries and where the mask applies. If `starts` is not
/// null, it holds the position of the first key that each query sees. If `is_capped` is true, the
/// scores are capped by `cap`, and dS includes the derivative of the cap as a factor.
template <bool is_capped, class T>
void softmax_backward(const float* scores, const float* dp, int64_t stride, int64_t keys,
                      int64_t queries, int64_t width, int64_t k0, int64_t q0, const int64_t* starts,
                      float scale, float cap, const float* lse, const float* delta, T* p, T* ds) {
  const V s = set(scale);
  int64_t last = queries;  // the documents of query `last` and later queries start after the key
  for (int64_t r = keys - 1; r >= 0; --r) {
    while (starts != nullptr && last > 0 && starts[last - 1] > k0 + r) --last;
    // Queries before the key don't see it.
    const int64_t first = std::min(queries, std::max<int64_t>(0, k0 + r - q0));
    T* to_p = p + r * width;
    T* to_ds = ds + r * width;
    for_vectors(queries, [&](int64_t i, auto part) HWY_ATTR {
      V x = part(scores + r * stride + i), factor = s, derivative = s;
      if constexpr (is_capped) {
        // The derivative of c tanh(x / c) is 1 - tanh^2(x / c).
        x = capped_part(x, scale, cap);
        factor = set(cap);
        derivative = hn::NegMulAdd(hn::Mul(x, s), x, s);
      }
      const V e = part.keep(exp_of(hn::MulSub(x, factor, part(lse + i))));
      const V d =
          hn::Mul(hn::Mul(e, hn::Sub(part(dp + r * stride + i), part(delta + i))), derivative);
      part(e, to_p + i);
      part(d, to_ds + i);
    });
    for (T* row : {to_p, to_ds}) {
      std::fill_n(row, first, T(0.0f));
      std::fill(row + last, row + width, T(0.0f));
    }
  }
}
void softmax_backward_block(const float* scores, const float* dp, int64_t stride, int64_t keys,
                            int64_t queries, int64_t width, int64_t k0, int64_t q0,
                            const int64_t* starts, float scale, float cap, const float* lse,
                            const float* delta, void* p, void* ds, Element type) {
  with_element(type, [&](auto t) HWY_ATTR {
    auto *to_p = static_cast<decltype(t)*>(p), *to_ds = static_cast<decltype(t)*>(ds);
    if (cap == 0) {
      softmax_backward<false>(scores, dp, stride, keys, queries, width, k0, q0, starts, scale, cap,
                              lse, delta, to_p, to_ds);
    } else {
      softmax_backward<true>(scores, dp, stride, keys, queries, width, k0, q0, starts, scale, cap,
                             lse, delta, to_p, to_ds);
    }
  });
}

/// Processes one block of keys for `heads` query heads that share these keys; each head has one
/// query. Computes the scores [heads][block of keys] and the online softmax, and adds to the output
/// [heads][wide] in `acc`. For more queries, attention.cc computes the same with matmuls of blocks.
/// q is float32 [heads rounded up to 1, 2, 4 or 8][width]. If `starts` is not null, it holds the
/// position of the first key that the query sees. `is_first` is true if there is no previous block
/// of keys.
template <class T>
void one_query_as(const T* k, const T* v, int64_t stride, int64_t keys, int64_t k0,
                  const int64_t* starts, bool is_first, int64_t width, int64_t heads,
                  const float* q, float scale, float cap, float* scores, float* p, float* m,
                  float* l, float* acc, int64_t wide, T* space) {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  constexpr int64_t block = 64;
  with_few(heads, [&](auto count) HWY_ATTR {
    few_rows_of<T, decltype(count)::value>(k, stride, keys, width, width, q, width, scores, block,
                                           space, 0);
  });
  for (int64_t h = 0; h < heads; ++h) {
    softmax_block(scores + h * block, block, 1, keys, keys, k0 + keys - 1, k0, starts, is_first,
                  scale, cap, p + h * block, Element::f32, m + h, l + h, acc + h * wide, wide);
    for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
      V sum = set(0);
      for (int64_t j = 0; j < keys; ++j)
        sum = hn::MulAdd(set(p[h * block + j]), part(v + j * stride + i), sum);
      float* to = acc + h * wide + i;
      part(is_first ? sum : hn::Add(sum, part(to)), to);
    });
  }
#else
  (void)k, (void)v, (void)stride, (void)keys, (void)k0, (void)starts, (void)is_first, (void)width,
      (void)heads, (void)q, (void)scale, (void)cap, (void)scores;
  (void)p, (void)m, (void)l, (void)acc, (void)wide, (void)space;
#endif
}
void one_query(Matrix k, Matrix v, int64_t keys, int64_t k0, const int64_t* starts, bool is_first,
               int64_t width, int64_t heads, const float* q, float scale, float cap, float* scores,
               float* p, float* m, float* l, float* acc, int64_t wide, void* space) {
  const auto run = [&](auto t) HWY_ATTR {
    using T = decltype(t);
    one_query_as(static_cast<const T*>(k.data), static_cast<const T*>(v.data), k.stride, keys, k0,
                 starts, is_first, width, heads, q, scale, cap, scores, p, m, l, acc, wide,
                 static_cast<T*>(space));
  };
  if (k.type == Element::f32) return run(float{});
  run(c10::BFloat16{});
}

/// Rotates the rows of a head by the angles of their positions. If `sign` is -1, rotates the rows
/// back. rope_table [rows, width] holds the cosines and sines of the angles
/// (core/kernels/rotary.h). `to` may be the same matrix as `from`.
void rotate_matrix(Matrix from, int64_t rows, int64_t width, const float* rope_table, float sign,
                   Matrix to) {
  with_element(from.type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    for (int64_t r = 0; r < rows; ++r) {
      rotate_head(static_cast<const T*>(from.at(r, 0)),
                  static_cast<T*>(const_cast<void*>(to.at(r, 0))), width, rope_table + r * width,
                  set(sign));
    }
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
