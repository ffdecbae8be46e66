#include "core/kernels/rotary.h"

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rotary.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/rotary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

template <class T>
void rotate_as(const void* x, void* y, int64_t begin, int64_t end, int64_t heads, int64_t width,
               const float* rope_table, int64_t rope_rows, float sign) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t at = r * heads * width; at < (r + 1) * heads * width; at += width) {
      rotate_head(static_cast<const T*>(x) + at, static_cast<T*>(y) + at, width,
                  rope_table + r % rope_rows * width, set(sign));
    }
  }
}
void rotate_rows(const void* x, void* y, Element type, int64_t begin, int64_t end, int64_t heads,
                 int64_t width, const float* rope_table, int64_t rope_rows, float sign) {
  with_element(type, [&](auto t) HWY_ATTR {
    rotate_as<decltype(t)>(x, y, begin, end, heads, width, rope_table, rope_rows, sign);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(rotate_rows);

void rotate_heads(const void* x, void* y, Element type, int64_t rows, int64_t heads, int64_t width,
                  const float* rope_table, int64_t rope_rows, bool back) {
  constexpr int64_t grain = 1 << 13;  // the smallest number of elements that is worth a thread
  parallel_for(0, rows, divide_up(grain, heads * width), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rotate_rows)(x, y, type, begin, end, heads, width, rope_table, rope_rows,
                                      back ? -1.0f : 1.0f);
  });
}

}  // namespace lathe
#endif
