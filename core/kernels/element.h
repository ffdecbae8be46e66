// Element types that kernels take; no LibTorch header, so that .cu files see it too.
#pragma once

#include <cstdint>

namespace lathe {

enum class Element : int32_t { f64, f32, bf16, f16 };

}  // namespace lathe
