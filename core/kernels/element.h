// Element types of kernels. There is no LibTorch header here, so that .cu files can include it.
#pragma once

#include <cstdint>

namespace lathe {

enum class Element : int32_t { f64, f32, bf16, f16 };

}  // namespace lathe
