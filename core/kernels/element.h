// Element types of kernels. There is no LibTorch header here, so that .cu files can include it.
#pragma once

#include <cstdint>

namespace lathe {

enum class Element : int32_t { f64, f32, bf16, f16 };

/// Returns the bytes of an element.
constexpr int64_t bytes_of(Element type) {
  if (type == Element::f64) return 8;
  return type == Element::f32 ? 4 : 2;
}

}  // namespace lathe
