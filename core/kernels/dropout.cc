#include "core/kernels/dropout.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lathe {
namespace {

template <class T, class Compute>
void run(const void* x_, void* y_, int64_t begin, int64_t end, const DropoutMask& mask) {
  const T* x = static_cast<const T*>(x_);
  T* y = static_cast<T*>(y_);
  const auto scale = static_cast<Compute>(mask.scale);
  for (int64_t i = begin; i < end;) {
    const uint64_t place = mask.first + static_cast<uint64_t>(i);
    const Philox4 words = philox(counter(place / 4, mask.step), mask.key);
    for (uint64_t w = place % 4; w < 4 && i < end; ++w, ++i) {
      y[i] = words[w] < mask.threshold ? T(0) : static_cast<T>(static_cast<Compute>(x[i]) * scale);
    }
  }
}

}  // namespace

void dropout_cpu(const void* x, void* y, int64_t begin, int64_t end, Element type, const DropoutMask& mask) {
  switch (type) {
    case Element::f32: return run<float, float>(x, y, begin, end, mask);
    case Element::f64: return run<double, double>(x, y, begin, end, mask);
    case Element::bf16: return run<c10::BFloat16, float>(x, y, begin, end, mask);
    case Element::f16: return run<c10::Half, float>(x, y, begin, end, mask);
  }
}

}  // namespace lathe
