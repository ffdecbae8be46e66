#include "core/kernels/dropout.h"

#include <c10/core/ScalarType.h>

#include "core/error.h"

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

void dropout_cpu(const void* x, void* y, int64_t begin, int64_t end, int dtype, const DropoutMask& mask) {
  switch (static_cast<c10::ScalarType>(dtype)) {
    case c10::kFloat: return run<float, float>(x, y, begin, end, mask);
    case c10::kDouble: return run<double, double>(x, y, begin, end, mask);
    case c10::kBFloat16: return run<c10::BFloat16, float>(x, y, begin, end, mask);
    case c10::kHalf: return run<c10::Half, float>(x, y, begin, end, mask);
    default: fail(Exit::internal, "dropout: no kernel for ", c10::toString(static_cast<c10::ScalarType>(dtype)));
  }
}

}  // namespace lathe
