// Defines the element types of kernels. This file includes no LibTorch header, so that .cu files
// can include it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lathe {

/// The type of elements: float64, float32, bfloat16 or float16.
enum class Element : int32_t { f64, f32, bf16, f16 };

/// Returns the size of an element in bytes.
constexpr int64_t bytes_of(Element type) {
  if (type == Element::f64) return 8;
  return type == Element::f32 ? 4 : 2;
}

/// Returns the address of element i; null if `data` is null.
template <class T>
T* element_at(T* data, Element type, int64_t i) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + i * bytes_of(type);
}

/// Returns whether an address is a multiple of `bytes`.
inline bool is_aligned(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace lathe
