// Arrays of examples, memory-mapped from .npy and .safetensors: dimension 0 counts the examples. No
// LibTorch header.
#pragma once

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "data/npy.h"

namespace lathe {

/// IEEE 754 binary16 and bfloat16.
inline double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double x = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) x = fraction == 0 ? HUGE_VAL : std::nan("");
  return bits >> 15 ? -x : x;
}
/// The value of bfloat16's bits.
inline double bfloat16_value(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

/// Calls f(read), where read(bytes, i) is element i of an array of this type as a double: exact but
/// for int64 beyond 2^53.
template <class F>
void with_reader(ArrayType type, F&& f) {
  const auto plain = []<class T>(T) {
    return [](const std::byte* bytes, int64_t i) {
      T x;
      std::memcpy(&x, bytes + i * static_cast<int64_t>(sizeof x), sizeof x);
      return static_cast<double>(x);
    };
  };
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

/// One array of a file.
class ExampleArray {
 public:
  /// A .npy file, or the tensor of that name in a .safetensors file ("" where it has one alone).
  /// Exit::data where it can't be read or has no dimension that counts examples.
  ExampleArray(const fs::path& path, const std::string& tensor);

  const fs::path& path() const { return path_; }
  ArrayType type() const { return type_; }
  /// How many examples, and the sizes of one.
  int64_t examples() const { return examples_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t numel() const { return numel_; }  ///< of one example
  const std::byte* example(int64_t i) const {
    return bytes_.data() + i * numel_ * array_type_bytes(type_);
  }
  /// Example i as doubles.
  void read(int64_t i, double* out) const;
  /// Gives the memory of examples [begin, end) back until they are wanted again.
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

/// "8x8", "64"; "" for no sizes.
std::string sizes_text(const std::vector<int64_t>& sizes);

}  // namespace lathe
