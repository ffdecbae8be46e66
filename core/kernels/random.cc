#include "core/kernels/random.h"

#include <algorithm>
#include <numbers>

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/random.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/philox-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t group = philox_group;

/// Writes the first two numbers of each Philox block in [first, first + group) to u and v, as
/// uniform numbers in (0, 1).
void uniforms(uint64_t first, RngKey key, double* u, double* v) {
  uint32_t words[4][group];
  philox_blocks(first, 0, key, words);
  for (int64_t i = 0; i < group; ++i) {
    u[i] = unit(words[0][i]);
    v[i] = unit(words[1][i]);
  }
}

void normal_range(float* out, int64_t begin, int64_t end, double stddev, RngKey key) {
  const hn::ScalableTag<double> d;
  double u[group], v[group];
  for (int64_t at = begin; at < end; at += group) {
    uniforms(static_cast<uint64_t>(at), key, u, v);
    for (int64_t i = 0; i < group; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2), hn::Log(d, hn::LoadU(d, u + i))));
      const auto turn = hn::Cos(d, hn::Mul(hn::Set(d, 2 * std::numbers::pi), hn::LoadU(d, v + i)));
      hn::StoreU(hn::Mul(hn::Mul(radius, turn), hn::Set(d, stddev)), d, u + i);
    }
    std::copy_n(u, std::min(group, end - at), out + at);
  }
}

void uniform_range(float* out, int64_t begin, int64_t end, double bound, RngKey key) {
  double u[group], v[group];
  for (int64_t at = begin; at < end; at += group) {
    uniforms(static_cast<uint64_t>(at), key, u, v);
    for (int64_t i = 0; i < std::min(group, end - at); ++i)
      out[at + i] = static_cast<float>(bound * (2 * u[i] - 1));
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(normal_range);
HWY_EXPORT(uniform_range);

void fill_normal(float* out, int64_t n, double stddev, RngKey key) {
  parallel_for(0, n, 1 << 12, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(normal_range)(out, begin, end, stddev, key);
  });
}
void fill_uniform(float* out, int64_t n, double bound, RngKey key) {
  parallel_for(0, n, 1 << 12, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(uniform_range)(out, begin, end, bound, key);
  });
}

}  // namespace lathe
#endif
