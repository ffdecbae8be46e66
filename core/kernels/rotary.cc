#include "core/kernels/rotary.h"

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rotary.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

template <class T>
void rotate_as(const void* x, void* y, int64_t begin, int64_t end, int64_t heads, int64_t width, const float* turns,
               int64_t turn_rows, float sign) {
  const int64_t half = width / 2;
  const V turned = set(sign);
  for (int64_t r = begin; r < end; ++r) {
    const float* cos = turns + r % turn_rows * width;
    const float* sin = cos + half;
    for (int64_t h = 0; h < heads; ++h) {
      const T* in = static_cast<const T*>(x) + (r * heads + h) * width;
      T* out = static_cast<T*>(y) + (r * heads + h) * width;
      for_vectors(half, [&](int64_t i, auto part) HWY_ATTR {
        const V a = part(in + i), b = part(in + half + i), c = part(cos + i), s = hn::Mul(part(sin + i), turned);
        part(hn::NegMulAdd(b, s, hn::Mul(a, c)), out + i);
        part(hn::MulAdd(a, s, hn::Mul(b, c)), out + half + i);
      });
    }
  }
}
void rotate_rows(const void* x, void* y, Element type, int64_t begin, int64_t end, int64_t heads, int64_t width,
                 const float* turns, int64_t turn_rows, float sign) {
  with_element(
      type, [&](auto t) HWY_ATTR { rotate_as<decltype(t)>(x, y, begin, end, heads, width, turns, turn_rows, sign); });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(rotate_rows);

void rotate_heads(const void* x, void* y, Element type, int64_t rows, int64_t heads, int64_t width, const float* turns,
                  int64_t turn_rows, bool back) {
  constexpr int64_t grain = 1 << 13;  // elements that are worth a thread
  parallel_for(0, rows, divide_up(grain, heads * width), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rotate_rows)(x, y, type, begin, end, heads, width, turns, turn_rows, back ? -1.0f : 1.0f);
  });
}

}  // namespace lathe
#endif
