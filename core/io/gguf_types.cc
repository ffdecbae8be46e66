// Reads and writes the blocks of GGUF files. In quantized types, a value is the product of a
// float16 scale and a quantized number. In some types, a scale of at most 8 bits is another factor.
// Some types also add or subtract an offset. The product fits in the 24 bits of a float32 mantissa,
// so the order of the multiplications does not change the values.
#include "core/io/gguf_types.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace lathe {
namespace {

constexpr size_t scale_bytes = 12;  // bytes of the scales and minima in a block of Q4_K or Q5_K

uint32_t byte_at(const std::byte* block, size_t i) { return std::to_integer<uint32_t>(block[i]); }

template <class T>
T load_at(const std::byte* block, size_t i) {
  T x;
  std::memcpy(&x, block + i, sizeof x);
  return x;
}

/// Returns the float16 at byte i.
float half_at(const std::byte* block, size_t i) {
  const uint32_t half = load_at<uint16_t>(block, i);
  const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) {  // the number is subnormal
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 |
                              fraction << 13);
}

/// Returns the float16 nearest to a finite number; ties round to even. Returns infinity for a
/// number beyond the range of float16.
uint16_t to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  uint32_t half = 0;
  if (magnitude < uint32_t{113} << 23) {  // below 2^-14: the result is a multiple of 2^-24
    half = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(x), 24)));
  } else {
    half = (magnitude - (uint32_t{112} << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    half = std::min(half, uint32_t{0x7C00});
  }
  return static_cast<uint16_t>(sign | half);
}

/// Writes a scale as float16 at the beginning of a block. Returns false if the scale is beyond the
/// range of float16.
bool put_scale(float scale, std::byte* block) {
  const uint16_t half = to_half(scale);
  std::memcpy(block, &half, sizeof half);
  return (half & 0x7FFF) < 0x7C00;
}

/// Returns number i of 32 numbers of 4 bits. The numbers are stored in the low halves of 16 bytes,
/// then in the high halves.
int nibble(const std::byte* bytes, size_t i) {
  return static_cast<int>(byte_at(bytes, i % 16) >> (i < 16 ? 0 : 4) & 15);
}

void read_f32(const std::byte* block, float* values) { *values = load_at<float>(block, 0); }
void read_f16(const std::byte* block, float* values) { *values = half_at(block, 0); }
void read_bf16(const std::byte* block, float* values) {
  *values = std::bit_cast<float>(uint32_t{load_at<uint16_t>(block, 0)} << 16);
}

void read_q4_0(const std::byte* block, float* values) {
  const float scale = half_at(block, 0);
  for (size_t i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(nibble(block + 2, i) - 8);
}

void read_q4_1(const std::byte* block, float* values) {
  const float scale = half_at(block, 0), least = half_at(block, 2);
  for (size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(nibble(block + 4, i)) + least;
}

/// Returns number i of 32 numbers of 5 bits. The first 4 bytes hold the highest bits of the
/// numbers; the next 16 bytes hold the low 4 bits of each number.
int five_bits(const std::byte* bytes, size_t i) {
  return nibble(bytes + 4, i) | static_cast<int>(load_at<uint32_t>(bytes, 0) >> i & 1) << 4;
}

void read_q5_0(const std::byte* block, float* values) {
  const float scale = half_at(block, 0);
  for (size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(five_bits(block + 2, i) - 16);
}

void read_q5_1(const std::byte* block, float* values) {
  const float scale = half_at(block, 0), least = half_at(block, 2);
  for (size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(five_bits(block + 4, i)) + least;
}

void read_q8_0(const std::byte* block, float* values) {
  const float scale = half_at(block, 0);
  for (size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(load_at<int8_t>(block, 2 + i));
}

/// The scale of a group of 32 numbers, and the offset that is subtracted from the scaled numbers.
struct Group {
  float scale, offset;
};

/// Returns group i of a block of Q4_K or Q5_K. The block begins with two float16 factors. The next
/// 12 bytes hold 8 scales and 8 offsets of 6 bits each. For i < 4, scale i is in the low 6 bits of
/// byte i, and offset i is in the low 6 bits of byte 4 + i. For i >= 4, the low half of byte 4 + i
/// holds the low 4 bits of scale i, and its high half holds the low 4 bits of offset i. The upper 2
/// bits of scale i are the highest bits of byte i - 4, and the upper 2 bits of offset i are the
/// highest bits of byte i.
Group group_of(const std::byte* block, size_t i) {
  const std::byte* packed = block + 4;
  const auto six_bits = [&](size_t first, uint32_t shift) {
    return i < 4
               ? byte_at(packed, first + i) & 63
               : (byte_at(packed, 4 + i) >> shift & 15) | byte_at(packed, first + i - 4) >> 6 << 4;
  };
  return {half_at(block, 0) * static_cast<float>(six_bits(0, 0)),
          half_at(block, 2) * static_cast<float>(six_bits(4, 4))};
}

void read_q4_k(const std::byte* block, float* values) {
  const std::byte* low = block + 4 + scale_bytes;
  for (size_t group = 0; group < 8; ++group) {
    const auto [scale, offset] = group_of(block, group);
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t q = byte_at(low, group / 2 * 32 + i) >> (group % 2 * 4) & 15;
      *values++ = scale * static_cast<float>(q) - offset;
    }
  }
}

void read_q5_k(const std::byte* block, float* values) {
  const std::byte *high = block + 4 + scale_bytes, *low = high + 32;
  for (size_t group = 0; group < 8; ++group) {
    const auto [scale, offset] = group_of(block, group);
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t q = (byte_at(low, group / 2 * 32 + i) >> (group % 2 * 4) & 15) |
                         (byte_at(high, i) >> group & 1) << 4;
      *values++ = scale * static_cast<float>(q) - offset;
    }
  }
}

/// Reads a block of Q6_K. Each half of the block has four groups of 32 numbers. The low 4 bits of
/// the numbers are in 64 bytes. The low halves of these bytes hold the low 4 bits of the first two
/// groups, and the high halves hold the low 4 bits of the last two groups. The upper 2 bits of each
/// number are stored separately.
void read_q6_k(const std::byte* block, float* values) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = half_at(block, 208);
  for (size_t i = 0; i < 256; ++i) {
    const size_t half = i / 128, group = i % 128 / 32, at = i % 32;
    const uint32_t q = (byte_at(low, half * 64 + group % 2 * 32 + at) >> (group / 2 * 4) & 15) |
                       (byte_at(high, half * 32 + at) >> (group * 2) & 3) << 4;
    values[i] = scale * static_cast<float>(load_at<int8_t>(scales, i / 16)) *
                static_cast<float>(static_cast<int>(q) - 32);
  }
}

/// Returns 1 / scale. Returns 0 if 1 / scale is not finite; such a small scale is 0 in float16.
float inverse_of(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

bool write_q8_0(const float* values, std::byte* block) {
  float largest = 0;
  for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 127, inverse = inverse_of(scale);
  for (size_t i = 0; i < 32; ++i) {
    // std::round rounds ties away from zero, as ggml's reference implementation does.
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
  }
  return put_scale(scale, block);
}

bool write_q4_0(const float* values, std::byte* block) {
  // The number with the largest magnitude becomes -8 times the scale. If several numbers have this
  // magnitude, the first one does.
  const float* extreme = std::max_element(
      values, values + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const float scale = *extreme / -8, inverse = inverse_of(scale);
  const auto quantized = [&](float x) {
    // Round the product to float32 before the addition, which a fused multiply-add would not do.
    const auto product = static_cast<float>(static_cast<double>(x) * inverse);
    return static_cast<uint8_t>(std::min(static_cast<int>(product + 8.5F), 15));
  };
  for (size_t i = 0; i < 16; ++i)
    block[2 + i] = std::byte(quantized(values[i]) | quantized(values[16 + i]) << 4);
  return put_scale(scale, block);
}

constexpr std::array<GGUFType, 11> types{{
    // The members of each type: name, number, of_file, elements, bytes, read, write.
    {"F32", 0, 0, 1, 4, read_f32, nullptr},
    {"F16", 1, 1, 1, 2, read_f16, nullptr},
    {"BF16", 30, 32, 1, 2, read_bf16, nullptr},
    {"Q4_0", 2, 2, 32, 18, read_q4_0, write_q4_0},
    {"Q4_1", 3, 3, 32, 20, read_q4_1, nullptr},
    {"Q5_0", 6, 8, 32, 22, read_q5_0, nullptr},
    {"Q5_1", 7, 9, 32, 24, read_q5_1, nullptr},
    {"Q8_0", 8, 7, 32, 34, read_q8_0, write_q8_0},
    {"Q4_K", 12, 15, 256, 144, read_q4_k, nullptr},
    {"Q5_K", 13, 17, 256, 176, read_q5_k, nullptr},
    {"Q6_K", 14, 18, 256, 210, read_q6_k, nullptr},
}};

}  // namespace

std::span<const GGUFType> gguf_types() { return types; }

const GGUFType* find_gguf_type(std::string_view name) {
  const auto* found = std::ranges::find(types, name, &GGUFType::name);
  return found == types.end() ? nullptr : found;
}

const GGUFType* find_gguf_type(uint32_t number) {
  const auto* found = std::ranges::find(types, number, &GGUFType::number);
  return found == types.end() ? nullptr : found;
}

void read_blocks(const GGUFType& type, std::span<const std::byte> blocks, float* values) {
  for (size_t at = 0; at < blocks.size(); at += type.bytes, values += type.elements)
    type.read(blocks.data() + at, values);
}

}  // namespace lathe
