// Declares arrays of examples, which are memory-mapped from .npy and .safetensors files. Dimension
// 0 of an array is the index of the example. Includes no LibTorch header.
#pragma once

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "data/examples/npy.h"

namespace lathe {

/// Returns the value of an IEEE 754 binary16 number.
inline double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double x = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) x = fraction == 0 ? HUGE_VAL : std::nan("");
  return bits >> 15 ? -x : x;
}
/// Returns the value of a bfloat16 number.
inline double bfloat16_value(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

/// Calls f(read), where read(bytes, i) returns element i of an array of this type as a double. The
/// conversion is exact, except for int64 numbers beyond 2^53.
template <class F>
void with_reader(ArrayType type, F&& f) {
  // Use memcpy, because elements of a mapped file may be unaligned.
  const auto plain = []<class T>(T) {
    return [](const std::byte* bytes, int64_t i) {
      T x;
      std::memcpy(&x, bytes + i * static_cast<int64_t>(sizeof x), sizeof x);
      return static_cast<double>(x);
    };
  };

  // C++20 has no types for binary16 and bfloat16, so read their bits first and then convert them.
  const auto bits = plain(uint16_t{});

  switch (type) {
    case ArrayType::f64: return f(plain(double{}));
    case ArrayType::f32: return f(plain(float{}));
    case ArrayType::f16:
      return f([&](const std::byte* p, int64_t i) {
        return half_value(static_cast<uint16_t>(bits(p, i)));
      });
    case ArrayType::bf16:
      return f([&](const std::byte* p, int64_t i) {
        return bfloat16_value(static_cast<uint16_t>(bits(p, i)));
      });
    case ArrayType::i8: return f(plain(int8_t{}));
    case ArrayType::i16: return f(plain(int16_t{}));
    case ArrayType::i32: return f(plain(int32_t{}));
    case ArrayType::i64: return f(plain(int64_t{}));
    case ArrayType::u8: return f(plain(uint8_t{}));
    case ArrayType::u16: return f(plain(uint16_t{}));
    case ArrayType::u32: return f(plain(uint32_t{}));
    case ArrayType::boolean:
      return f([](const std::byte* p, int64_t i) { return p[i] == std::byte{0} ? 0.0 : 1.0; });
  }
}

/// An array of examples in a file.
class ExampleArray {
 public:
  /// Opens a .npy file, or the tensor called `tensor` in a .safetensors file. If `tensor` is empty,
  /// opens the only tensor of the file; if the file has several tensors, opens the tensor called
  /// "inputs". Throws Exit::data if the file can't be read, if the array has no dimensions, or if
  /// an example is empty or has more than 2^40 elements.
  ExampleArray(const fs::path& path, const std::string& tensor);

  const fs::path& path() const { return path_; }
  ArrayType type() const { return type_; }
  /// Returns the number of examples.
  int64_t examples() const { return examples_; }
  /// Returns the dimensions of one example.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  /// Returns the number of elements of one example.
  int64_t numel() const { return numel_; }
  /// Returns the elements of example i, which may be unaligned.
  const std::byte* example(int64_t i) const {
    return bytes_.data() + i * numel_ * array_type_bytes(type_);
  }
  /// Writes the numel() elements of example i to `out` as doubles.
  void read(int64_t i, double* out) const;
  /// Releases the memory of examples [begin, end). The next access reads the file again.
  void release(int64_t begin, int64_t end) const;

 private:
  fs::path path_;
  std::optional<NpyFile> npy_;
  std::optional<SafetensorsFile> safetensors_;
  ArrayType type_ = ArrayType::f32;
  std::vector<int64_t> sizes_;
  int64_t examples_ = 0, numel_ = 1;
  std::span<const std::byte> bytes_;
};

/// Returns sizes as text: "8x8", "64", or "" for no sizes.
std::string sizes_text(const std::vector<int64_t>& sizes);

}  // namespace lathe
