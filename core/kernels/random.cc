#include "core/kernels/random.h"

#include <algorithm>
#include <numbers>

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/random.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t group = 64;  // elements at a time

/// The first two numbers of blocks first .. first + group, as uniform ones in (0, 1). Plain loops over arrays, which
/// the compiler turns into vectors.
void uniforms(uint64_t first, RngKey key, double* u, double* v) {
  uint32_t c0[group], c1[group], c2[group], c3[group];
  for (int64_t i = 0; i < group; ++i) {
    const Philox4 c = counter(first + static_cast<uint64_t>(i), 0);
    c0[i] = c[0], c1[i] = c[1], c2[i] = c[2], c3[i] = c[3];
  }
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < group; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0[i], b = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ key.k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ key.k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < group; ++i) {
    u[i] = unit(c0[i]);
    v[i] = unit(c1[i]);
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
    for (int64_t i = 0; i < std::min(group, end - at); ++i) out[at + i] = static_cast<float>(bound * (2 * u[i] - 1));
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(normal_range);
HWY_EXPORT(uniform_range);

void fill_normal(float* out, int64_t n, double stddev, RngKey key) {
  at::parallel_for(0, n, 1 << 12, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(normal_range)(out, begin, end, stddev, key);
  });
}
void fill_uniform(float* out, int64_t n, double bound, RngKey key) {
  at::parallel_for(0, n, 1 << 12, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(uniform_range)(out, begin, end, bound, key);
  });
}

}  // namespace lathe
#endif
