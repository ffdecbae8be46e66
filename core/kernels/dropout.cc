#include "core/kernels/dropout.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/dropout.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

template <class T, class Compute>
void run(const void* x_, void* y_, int64_t begin, int64_t end, const DropoutMask& mask) {
  const T* x = static_cast<const T*>(x_);
  T* y = static_cast<T*>(y_);
  const auto scale = static_cast<Compute>(mask.scale);
  constexpr int64_t most = 4 * philox_group;
  uint32_t words[4][philox_group];
  T kept[most], dropped[most];
  for (int64_t at = begin; at < end;) {
    const uint64_t place = mask.first + static_cast<uint64_t>(at);
    const auto skip = static_cast<int64_t>(place % 4);  // a range may begin within a Philox block
    const int64_t n = std::min(most - skip, end - at);
    philox_blocks(place / 4, mask.step, mask.key, words);
    for (int64_t i = 0; i < n; ++i)
      kept[i] = static_cast<T>(static_cast<Compute>(x[at + i]) * scale);
    for (int64_t i = 0; i < philox_group; ++i) {
      for (int64_t w = 0; w < 4; ++w)
        dropped[4 * i + w] = words[w][i] < mask.threshold ? T(0) : T(1);
    }
    for (int64_t i = 0; i < n; ++i) y[at + i] = dropped[skip + i] == T(0) ? T(0) : kept[i];
    at += n;
  }
}

void run_range(const void* x, void* y, int64_t begin, int64_t end, Element type,
               const DropoutMask& mask) {
  switch (type) {
    case Element::f32: return run<float, float>(x, y, begin, end, mask);
    case Element::f64: return run<double, double>(x, y, begin, end, mask);
    case Element::bf16: return run<c10::BFloat16, float>(x, y, begin, end, mask);
    case Element::f16: return run<c10::Half, float>(x, y, begin, end, mask);
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(run_range);

void dropout_cpu(const void* x, void* y, int64_t begin, int64_t end, Element type,
                 const DropoutMask& mask) {
  HWY_DYNAMIC_DISPATCH(run_range)(x, y, begin, end, type, mask);
}

}  // namespace lathe
#endif
