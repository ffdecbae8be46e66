#include "core/kernels/adam8bit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/adam8bit.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
// After highway.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

constexpr int levels = 256;

/// The level nearest to x in [-1, 1], the lower of two that are as near: `middles` [255] are halfway between levels.
inline uint8_t nearest_level(float x, const float* middles) {
  int at = 0;
  for (int step = levels / 2; step > 0; step /= 2) at += middles[at + step - 1] < x ? step : 0;
  return static_cast<uint8_t>(at);
}

/// Moments of one block: codes and scale to values, and back.
template <class T>
void read_codes(const uint8_t* codes, float scale, const float* values, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(values[codes[i]] * scale);
}
template <class T>
void write_codes(const T* x, int64_t n, const float* middles, uint8_t* codes, float* scale) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(static_cast<float>(x[i])));
  *scale = most;
  const float inverse = most > 0 ? 1 / most : 0;
  // The inverse of a very small number is infinite: then by division.
  for (int64_t i = 0; i < n; ++i) {
    const float y = std::isfinite(inverse) ? static_cast<float>(x[i]) * inverse : static_cast<float>(x[i]) / most;
    codes[i] = nearest_level(y, middles);
  }
}

template <class Rule, class T>
void run(const Adam8bitArgs& q, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end,
         const float* const values[2], const float* const middles[2], T* moments) {
  const UpdateArgs& a = q.update;
  const Coefficients<T> c = coefficients<Rule, T>(rule, a, *control);
  T grads[update_block];
  T *m = moments, *v = moments + q.block;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * q.block, n = std::min(q.block, a.n - first);
    uint8_t* codes[2] = {static_cast<uint8_t*>(a.state[0]) + first, static_cast<uint8_t*>(a.state[1]) + first};
    float* scales[2] = {static_cast<float*>(a.state[2]) + block, static_cast<float*>(a.state[3]) + block};
    read_codes(codes[0], *scales[0], values[0], n, m);
    read_codes(codes[1], *scales[1], values[1], n, v);
    update_blocks<T>(a, rule, control, first, first + n, [&](int64_t at, int64_t count, const T* p, T* out) {
      const T* g = load_gradient(a, rule, *control, at, count, grads);
      T *own_m = m + (at - first), *own_v = v + (at - first);
      for (int64_t i = 0; i < count; ++i) {
        const T x = g[i] * c.grad_scale + c.wd * p[i];
        out[i] = Rule::element(p[i], x, own_m + i, own_v + i, static_cast<T*>(nullptr), c);
      }
    });
    write_codes(m, n, middles[0], codes[0], scales[0]);
    write_codes(v, n, middles[1], codes[1], scales[1]);
  }
}

}  // namespace

void adam8bit(const Adam8bitArgs& q, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end,
              const float* const values[2], const float* const middles[2], void* moments) {
  const auto as = [&](auto r, auto zero) {
    using T = decltype(zero);
    run<decltype(r), T>(q, rule, control, begin, end, values, middles, static_cast<T*>(moments));
  };
  const bool wide = q.update.param_type == Element::f64;
  if (q.decoupled)
    wide ? as(AdamW{}, 0.0) : as(AdamW{}, 0.0f);
  else
    wide ? as(Adam{}, 0.0) : as(Adam{}, 0.0f);
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace lathe {
namespace {

std::array<float, 256> make_levels(bool with_sign) {
  std::vector<double> all{0, 1};
  for (int e = 0; e <= 6; ++e) {
    const int parts = 1 << (with_sign ? 6 - e : 7 - e);
    for (int i = 0; i < parts; ++i) {
      const double f = 0.1 + 0.9 * (i + 0.5) / parts, level = std::pow(10.0, -e) * f;
      all.push_back(level);
      if (with_sign) all.push_back(-level);
    }
  }
  std::sort(all.begin(), all.end());
  std::array<float, 256> levels{};
  for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<float>(all[i]);
  return levels;
}

/// Halfway between neighbours.
std::array<float, 255> make_middles(const std::array<float, 256>& levels) {
  std::array<float, 255> middles{};
  for (size_t i = 0; i < middles.size(); ++i) middles[i] = (levels[i] + levels[i + 1]) / 2;
  return middles;
}

}  // namespace

const std::array<float, 256>& dynamic_levels(bool with_sign) {
  static const std::array<float, 256> with = make_levels(true), without = make_levels(false);
  return with_sign ? with : without;
}

HWY_EXPORT(adam8bit);

void adam8bit_cpu(const Adam8bitArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end) {
  static const std::array<float, 255> signed_middles = make_middles(dynamic_levels(true)),
                                      positive_middles = make_middles(dynamic_levels(false));
  const float* const values[2] = {dynamic_levels(true).data(), dynamic_levels(false).data()};
  const float* const middles[2] = {signed_middles.data(), positive_middles.data()};
  std::vector<double> moments(static_cast<size_t>(2 * args.block));  // room for either type
  HWY_DYNAMIC_DISPATCH(adam8bit)(args, rule, control, begin, end, values, middles, moments.data());
}

}  // namespace lathe
#endif
