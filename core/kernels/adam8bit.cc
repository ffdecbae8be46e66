#include "core/kernels/adam8bit.h"

#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/adam8bit.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"
// This include must follow hwy/highway.h.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

constexpr int levels = 256;
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// Returns the index of the level to which x, a number in [-1, 1], is rounded. `bounds` are the 255
/// bounds between levels (level_bounds()). If x is equal to a bound, returns the index of the lower
/// level.
inline uint8_t nearest_level(float x, const float* bounds) {
  int at = 0;
  for (int step = levels / 2; step > 0; step /= 2) at += bounds[at + step - 1] < x ? step : 0;
  return static_cast<uint8_t>(at);
}
/// Stores nearest_level() of each lane of x.
HWY_INLINE void store_nearest_levels(V x, const float* bounds, uint8_t* codes) {
  const hn::RebindToSigned<D> di;
  auto at = hn::Zero(di);
  for (int step = levels / 2; step > 0; step /= 2) {
    const V bound = hn::GatherIndex(D(), bounds + step - 1, at);
    at = hn::Add(at, hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(bound, x)), hn::Set(di, step)));
  }
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::DemoteTo(d8, at), d8, codes);
}

/// Converts the codes and the scale of one block to numbers. `values` are the levels. write_codes()
/// does the reverse.
template <class T>
void read_codes(const uint8_t* codes, float scale, const float* values, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(values[codes[i]] * scale);
}
void write_codes(const float* x, int64_t n, const float* bounds, uint8_t* codes, float* scale) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(D()));
  V all = hn::Zero(D());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V size = hn::Abs(hn::LoadU(D(), x + i));
    all = hn::IfThenElse(hn::Gt(size, all), size, all);  // leaves NaN out
  }
  float most = hn::GetLane(hn::MaxOfLanes(D(), all));
  for (; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  *scale = most;
  // The inverse of a very small number is infinite. In that case, divide by the number, which gives
  // the right result.
  const float inverse = most > 0 ? 1 / most : 0;
  const bool divide = !std::isfinite(inverse);
  for (i = 0; i + lanes <= n; i += lanes) {
    const V v = hn::LoadU(D(), x + i);
    store_nearest_levels(
        divide ? hn::Div(v, hn::Set(D(), most)) : hn::Mul(v, hn::Set(D(), inverse)), bounds,
        codes + i);
  }
  for (; i < n; ++i) codes[i] = nearest_level(divide ? x[i] / most : x[i] * inverse, bounds);
}

template <class Rule, class T>
void run(const Adam8bitArgs& q, const UpdateRule& rule, StepControl* control, int64_t begin,
         int64_t end, const float* const values[2], const float* const bounds[2], T* moments) {
  const UpdateArgs& a = q.update;
  const Coefficients<T> c = coefficients<Rule, T>(rule, a, *control);
  T grads[update_block];
  T *m = moments, *v = moments + q.block;
  std::vector<float> floats(std::is_same_v<T, float> ? 0 : static_cast<size_t>(q.block));
  const auto write = [&](const T* x, int64_t n, const float* between, uint8_t* codes,
                         float* scale) {
    if constexpr (std::is_same_v<T, float>) {
      write_codes(x, n, between, codes, scale);
    } else {
      for (int64_t i = 0; i < n; ++i) floats[static_cast<size_t>(i)] = static_cast<float>(x[i]);
      write_codes(floats.data(), n, between, codes, scale);
    }
  };
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * q.block, n = std::min(q.block, a.n - first);
    uint8_t* codes[2] = {static_cast<uint8_t*>(a.state[0]) + first,
                         static_cast<uint8_t*>(a.state[1]) + first};
    float* scales[2] = {static_cast<float*>(a.state[2]) + block,
                        static_cast<float*>(a.state[3]) + block};
    read_codes(codes[0], *scales[0], values[0], n, m);
    read_codes(codes[1], *scales[1], values[1], n, v);
    update_blocks<T>(
        a, rule, control, first, first + n, [&](int64_t at, int64_t count, const T* p, T* out) {
          const T* g = load_gradient(a, rule, *control, at, count, grads);
          T *own_m = m + (at - first), *own_v = v + (at - first);
          for (int64_t i = 0; i < count; ++i) {
            const T x = g[i] * c.grad_scale + c.wd * p[i];
            out[i] = Rule::element(p[i], x, own_m + i, own_v + i, static_cast<T*>(nullptr), c);
          }
        });
    write(m, n, bounds[0], codes[0], scales[0]);
    write(v, n, bounds[1], codes[1], scales[1]);
  }
}

}  // namespace

void adam8bit(const Adam8bitArgs& q, const UpdateRule& rule, StepControl* control, int64_t begin,
              int64_t end, const float* const values[2], const float* const bounds[2],
              void* moments) {
  const auto as = [&](auto r, auto zero) {
    using T = decltype(zero);
    run<decltype(r), T>(q, rule, control, begin, end, values, bounds, static_cast<T*>(moments));
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

std::array<float, 255> make_bounds(bool with_sign) {
  const std::array<float, 256>& levels = dynamic_levels(with_sign);
  std::array<float, 255> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (levels[i] + levels[i + 1]) / 2;
  if (!with_sign) bounds[0] = 0;
  return bounds;
}

}  // namespace

const std::array<float, 256>& dynamic_levels(bool with_sign) {
  static const std::array<float, 256> with = make_levels(true), without = make_levels(false);
  return with_sign ? with : without;
}

const std::array<float, 255>& level_bounds(bool with_sign) {
  static const std::array<float, 255> with = make_bounds(true), without = make_bounds(false);
  return with_sign ? with : without;
}

HWY_EXPORT(adam8bit);

void adam8bit_cpu(const Adam8bitArgs& args, const UpdateRule& rule, StepControl* control,
                  int64_t begin, int64_t end) {
  const float* const values[2] = {dynamic_levels(true).data(), dynamic_levels(false).data()};
  const float* const bounds[2] = {level_bounds(true).data(), level_bounds(false).data()};
  std::vector<double> moments(static_cast<size_t>(2 * args.block));  // enough memory for both
                                                                     // moments of a block in
                                                                     // float32 or float64
  HWY_DYNAMIC_DISPATCH(adam8bit)(args, rule, control, begin, end, values, bounds, moments.data());
}

}  // namespace lathe
#endif
