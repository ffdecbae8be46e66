// Packs blocks of GGUF's quantized types in the layouts of ggml-quants.c, without Lathe's code.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gguf.h"

namespace lathe::test {

/// A block, and the numbers that it encodes.
struct GGUFBlock {
  std::string bytes;
  std::vector<float> values;
};

/// Packs random numbers. The expected values are computed in double, which is exact, and rounded
/// once to float.
class GGUFPacker {
 public:
  explicit GGUFPacker(uint64_t seed) : random_(seed) {}

  GGUFBlock f32() {
    const float x = std::normal_distribution<float>()(random_);
    return {raw(x), {x}};
  }
  GGUFBlock f16() {
    const c10::Half x = half();
    return {raw(x.x), {static_cast<float>(x)}};
  }
  GGUFBlock bf16() {
    const c10::BFloat16 x = std::normal_distribution<float>()(random_);
    return {raw(x.x), {static_cast<float>(x)}};
  }
  /// Packs Q4_0, Q4_1, Q5_0 or Q5_1: 32 numbers of `bits` bits, with a scale and either a minimum
  /// (`has_least`) or a fixed offset. If `bits` is 5, the fifth bits of all numbers come first.
  /// Then byte i has the lower four bits of the numbers i and i + 16.
  GGUFBlock legacy(int bits, bool has_least) {
    const c10::Half scale = half(), least = has_least ? half() : c10::Half(0);
    const size_t high = has_least ? 4 : 2, low = high + (bits == 5 ? 4 : 0);
    GGUFBlock block{std::string(low + 16, '\0'), {}};
    put(block, 0, raw(scale.x));
    if (has_least) put(block, 2, raw(least.x));
    for (size_t i = 0; i < 32; ++i) {
      const int q = below(1 << bits);
      set(block, low + i % 16, i < 16 ? 0 : 4, q & 15);
      if (bits == 5) set(block, high + i / 8, static_cast<int>(i % 8), q >> 4);
      // If there is no minimum, zeros keep their sign.
      add(block,
          has_least ? double(scale) * q + double(least) : double(scale) * (q - (1 << (bits - 1))));
    }
    return block;
  }
  GGUFBlock q8_0() {
    const c10::Half scale = half();
    GGUFBlock block{raw(scale.x), {}};
    for (size_t i = 0; i < 32; ++i) {
      const auto q = static_cast<int8_t>(below(256) - 128);
      block.bytes += raw(q);
      add(block, double(scale) * q);
    }
    return block;
  }
  /// Packs Q4_K or Q5_K: eight groups of 32 numbers, each with a 6-bit scale and a 6-bit offset.
  GGUFBlock groups(int bits) {
    const c10::Half scale = half(), offset = half();
    const size_t high = 16, low = bits == 5 ? 48 : 16;
    GGUFBlock block{std::string(low + 128, '\0'), {}};
    put(block, 0, raw(scale.x) + raw(offset.x));

    for (size_t g = 0; g < 8; ++g) {
      const int s = below(64), o = below(64);
      if (g < 4) {
        // Each scale and each offset of the first four groups is in the lower six bits of a byte.
        set(block, 4 + g, 0, s);
        set(block, 8 + g, 0, o);
      } else {  // byte 8 + g has the lower four bits of both; bytes g and 4 + g have the others
        set(block, 8 + g, 0, s & 15);
        set(block, 8 + g, 4, o & 15);
        set(block, g, 6, s >> 4);
        set(block, 4 + g, 6, o >> 4);
      }

      for (size_t i = 0; i < 32; ++i) {
        const int q = below(1 << bits);
        set(block, low + g / 2 * 32 + i, g % 2 == 0 ? 0 : 4, q & 15);
        if (bits == 5) set(block, high + i, static_cast<int>(g), q >> 4);
        add(block, double(scale) * s * q - double(offset) * o);
      }
    }
    return block;
  }
  /// Packs Q6_K: two halves of 128 numbers, and 16 scales of eight bits, each for 16 numbers.
  GGUFBlock q6_k() {
    const c10::Half scale = half();
    GGUFBlock block{std::string(210, '\0'), {}};
    put(block, 208, raw(scale.x));
    for (size_t s = 0; s < 16; ++s) {
      const auto of_group = static_cast<int8_t>(below(256) - 128);
      put(block, 192 + s, raw(of_group));
      for (size_t i = 16 * s; i < 16 * s + 16; ++i) {
        const int q = below(64);
        const size_t quarter = i % 128 / 32, at = i % 32;
        set(block, i / 128 * 64 + (quarter == 1 || quarter == 3 ? 32 : 0) + at, quarter < 2 ? 0 : 4,
            q & 15);
        set(block, 128 + i / 128 * 32 + at, 2 * static_cast<int>(quarter), q >> 4);
        add(block, double(scale) * of_group * (q - 32));
      }
    }
    return block;
  }

 private:
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  /// Returns a float16 of magnitude below 1, with any exponent and either sign.
  c10::Half half() {
    return {static_cast<uint16_t>(below(2) << 15 | below(0x3C00)), c10::Half::from_bits()};
  }
  static void put(GGUFBlock& block, size_t at, const std::string& bytes) {
    block.bytes.replace(at, bytes.size(), bytes);
  }
  static void set(GGUFBlock& block, size_t byte, int shift, int bits) {
    block.bytes[byte] = static_cast<char>(block.bytes[byte] | bits << shift);
  }
  static void add(GGUFBlock& block, double value) {
    block.values.push_back(static_cast<float>(value));
  }

  std::mt19937_64 random_;
};

/// A GGUF type that Lathe reads: its name, its number, and a function that packs a block of it.
struct GGUFOracle {
  const char* name;
  uint32_t number;
  GGUFBlock (*pack)(GGUFPacker& packer);
};
inline const std::vector<GGUFOracle>& gguf_oracles() {
  static const std::vector<GGUFOracle> all{
      {"F32", 0, [](GGUFPacker& p) { return p.f32(); }},
      {"F16", 1, [](GGUFPacker& p) { return p.f16(); }},
      {"BF16", 30, [](GGUFPacker& p) { return p.bf16(); }},
      {"Q4_0", 2, [](GGUFPacker& p) { return p.legacy(4, false); }},
      {"Q4_1", 3, [](GGUFPacker& p) { return p.legacy(4, true); }},
      {"Q5_0", 6, [](GGUFPacker& p) { return p.legacy(5, false); }},
      {"Q5_1", 7, [](GGUFPacker& p) { return p.legacy(5, true); }},
      {"Q8_0", 8, [](GGUFPacker& p) { return p.q8_0(); }},
      {"Q4_K", 12, [](GGUFPacker& p) { return p.groups(4); }},
      {"Q5_K", 13, [](GGUFPacker& p) { return p.groups(5); }},
      {"Q6_K", 14, [](GGUFPacker& p) { return p.q6_k(); }},
  };
  return all;
}

}  // namespace lathe::test
