#include "core/kernels/norm.h"

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

template <class In, class Out>
void forward_rows(const NormRows& n, Matrix x, Matrix y, float eps, int64_t begin, int64_t end) {
  const float inverse = 1.0f / static_cast<float>(n.columns);
  for (int64_t r = begin; r < end; ++r) {
    const In* in = static_cast<const In*>(x.at(r, 0));
    Out* out = static_cast<Out*>(const_cast<void*>(y.at(r, 0)));

    float mean = 0;
    if (n.mean != nullptr) {
      V sum = set(0);
      for_vectors(n.columns,
                  [&](int64_t i, auto part) HWY_ATTR { sum = hn::Add(sum, part(in + i)); });
      n.mean[r] = mean = sum_of(sum) * inverse;
    }

    // Compute the variance in a second pass. Subtracting the mean first avoids the cancellation in
    // E[x^2] - E[x]^2.
    V squares = set(0);
    const V m = set(mean);
    for_vectors(n.columns, [&](int64_t i, auto part) HWY_ATTR {
      const V centered = part.keep(hn::Sub(part(in + i), m));
      squares = hn::MulAdd(centered, centered, squares);
    });

    // If the squares overflow, rstd = 1 / infinity would replace the values of a diverged run by
    // zeros, so set rstd to NaN.
    const float variance = sum_of(squares) * inverse,
                rstd = variance < INFINITY ? 1.0f / std::sqrt(variance + eps) : NAN;
    n.rstd[r] = rstd;

    const V s = set(rstd);
    for_vectors(n.columns, [&](int64_t i, auto part) HWY_ATTR {
      V v = hn::Mul(hn::Sub(part(in + i), m), s);
      if (n.weight != nullptr) v = hn::Mul(v, part(n.weight + i));
      if (n.bias != nullptr) v = hn::Add(v, part(n.bias + i));
      part(v, out + i);
    });
  }
}

/// Computes dx for rows [begin, end). If `sums` [2][columns] is not null, adds the parts of dweight
/// and dbias that come from these rows to `sums`.
template <class In, class Grad>
void backward_rows(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add, float* sums,
                   int64_t begin, int64_t end) {
  const float inverse = 1.0f / static_cast<float>(n.columns);
  for (int64_t r = begin; r < end; ++r) {
    const In* in = static_cast<const In*>(x.at(r, 0));
    const Grad* up = static_cast<const Grad*>(dy.at(r, 0));
    In* out = static_cast<In*>(const_cast<void*>(dx.at(r, 0)));
    const V m = set(n.mean == nullptr ? 0.0f : n.mean[r]), s = set(n.rstd[r]);
    // Returns the gradient of h = (x - mean) rstd.
    const auto scaled = [&](int64_t i, auto part) HWY_ATTR {
      const V g = part(up + i);
      return n.weight == nullptr ? g : hn::Mul(g, part(n.weight + i));
    };

    // Compute the averages of g and g h over the row, and add the row's part of dweight and dbias.
    V sum_g = set(0), sum_gh = set(0);
    for_vectors(n.columns, [&](int64_t i, auto part) HWY_ATTR {
      const V g = scaled(i, part), h = hn::Mul(hn::Sub(part(in + i), m), s);
      sum_g = hn::Add(sum_g, g);
      sum_gh = hn::MulAdd(g, h, sum_gh);
      if (sums == nullptr) return;
      const V plain = part(up + i);
      part(hn::MulAdd(plain, h, part(sums + i)), sums + i);
      part(hn::Add(plain, part(sums + n.columns + i)), sums + n.columns + i);
    });

    if (out == nullptr) continue;
    // RMS norm subtracts no mean, so its gradient does not contain avg(g).
    const V avg_g = set(n.mean == nullptr ? 0.0f : sum_of(sum_g) * inverse),
            avg_gh = set(sum_of(sum_gh) * inverse);

    for_vectors(n.columns, [&](int64_t i, auto part) HWY_ATTR {
      const V g = scaled(i, part), h = hn::Mul(hn::Sub(part(in + i), m), s);
      const V d = hn::Mul(s, hn::NegMulAdd(h, avg_gh, hn::Sub(g, avg_g)));
      part(add ? hn::Add(d, part(out + i)) : d, out + i);
    });
  }
}

void forward_block(const NormRows& n, Matrix x, Matrix y, float eps, int64_t begin, int64_t end) {
  with_elements(x.type, y.type, [&](auto in, auto out) HWY_ATTR {
    forward_rows<decltype(in), decltype(out)>(n, x, y, eps, begin, end);
  });
}

void backward_block(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add, float* sums,
                    int64_t begin, int64_t end) {
  with_elements(x.type, dy.type, [&](auto in, auto grad) HWY_ATTR {
    backward_rows<decltype(in), decltype(grad)>(n, x, dy, dx, add, sums, begin, end);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(forward_block);
HWY_EXPORT(backward_block);

namespace {
constexpr int64_t sum_rows = 64;  // number of rows in a partial sum
}

void norm_forward(const NormRows& n, Matrix x, Matrix y, float eps) {
  parallel_for(0, n.rows, divide_up(1 << 14, n.columns), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_block)(n, x, y, eps, begin, end);
  });
}

void norm_backward(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add, float* dweight,
                   float* dbias) {
  const bool sums = dweight != nullptr || dbias != nullptr;
  // Partial sums have a fixed number of rows, so that results don't depend on the number of
  // threads.
  const int64_t blocks = divide_up(n.rows, sum_rows), each = 2 * n.columns;

  c10::DataPtr memory;
  float* partial = nullptr;
  if (sums) {
    memory = c10::GetCPUAllocator()->allocate(static_cast<size_t>(blocks * each * 4));
    partial = static_cast<float*>(memory.get());
  }

  parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* mine = sums ? partial + i * each : nullptr;
      if (sums) std::fill_n(mine, each, 0.0f);
      HWY_DYNAMIC_DISPATCH(backward_block)
      (n, x, dy, dx, add, mine, i * sum_rows, std::min(n.rows, (i + 1) * sum_rows));
    }
  });

  for (float* total : {dweight, dbias}) {
    if (total == nullptr) continue;
    const int64_t offset = total == dweight ? 0 : n.columns;
    // Each thread sums some of the columns, and each column is summed in a fixed order.
    parallel_for(0, n.columns, divide_up(1 << 13, blocks), [&](int64_t begin, int64_t end) {
      std::fill(total + begin, total + end, 0.0f);
      for (int64_t i = 0; i < blocks; ++i) {
        for (int64_t c = begin; c < end; ++c) total[c] += partial[i * each + offset + c];
      }
    });
  }
}

}  // namespace lathe
#endif
