// Compares the numbers that are read from blocks of GGUF's element types with the numbers that the
// test packed. Also compares quantization with LibTorch and with known values.
#include "core/io/gguf_types.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/gguf_blocks.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<float> read_all(const GGUFType& type, const std::string& bytes) {
  std::vector<float> values(bytes.size() / type.bytes * static_cast<size_t>(type.elements));
  read_blocks(type, std::as_bytes(std::span(bytes)), values.data());
  return values;
}

std::string written(const GGUFType& type, const std::vector<float>& values) {
  std::string block(type.bytes, '\0');
  CHECK(type.write(values.data(), reinterpret_cast<std::byte*>(block.data())));
  return block;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

TEST_CASE("blocks of each GGUF type are read as the numbers that were packed", "[gguf_types]") {
  CHECK(gguf_types().size() == gguf_oracles().size());
  for (const GGUFType& type : gguf_types()) {
    INFO(type.name);
    const auto oracle =
        std::ranges::find(gguf_oracles(), std::string(type.name), &GGUFOracle::name);
    REQUIRE(oracle != gguf_oracles().end());  // each type needs a packer
    CHECK(type.number == oracle->number);
    CHECK(find_gguf_type(type.number) == &type);
    CHECK(find_gguf_type(type.name) == &type);

    GGUFPacker packer(7);
    std::string bytes;
    std::vector<float> values;
    for (int i = 0; i < 500; ++i) {
      const GGUFBlock block = oracle->pack(packer);
      REQUIRE(block.bytes.size() == type.bytes);
      REQUIRE(std::ssize(block.values) == type.elements);
      bytes += block.bytes;
      values.insert(values.end(), block.values.begin(), block.values.end());
    }
    CHECK(same_bits(read_all(type, bytes), values));
    // The comparison must notice a changed bit of the last byte, which holds a scale or numbers in
    // every type.
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    CHECK(!same_bits(read_all(type, bytes), values));
  }
  CHECK(find_gguf_type(uint32_t{10}) == nullptr);
  CHECK(find_gguf_type("Q2_K") == nullptr);
}

TEST_CASE("all float16 scales are read as LibTorch converts them, and written again",
          "[gguf_types]") {
  const GGUFType &half = *find_gguf_type("F16"), &q8 = *find_gguf_type("Q8_0");
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const c10::Half wanted(static_cast<uint16_t>(bits), c10::Half::from_bits());
    const float value = read_all(half, raw(static_cast<uint16_t>(bits)))[0];
    if (std::isnan(static_cast<float>(wanted))) {
      CHECK(std::isnan(value));
      continue;
    }
    REQUIRE(same_bits({value}, {static_cast<float>(wanted)}));

    // The scale of Q8_0 is the largest magnitude / 127, rounded to float16. Test values at and near
    // each float16.
    if (bits >= 0x7C00) continue;
    for (const float near : {value, std::nextafter(value, 1e6F), value * 1.0003F}) {
      const float largest = near * 127, scale = largest / 127;
      std::vector<float> values(32, 0.0F);
      values[5] = -largest;
      std::string block(q8.bytes, '\0');
      const bool fits = q8.write(values.data(), reinterpret_cast<std::byte*>(block.data()));
      const c10::Half stored(scale);
      CHECK(fits == std::isfinite(static_cast<float>(stored)));
      REQUIRE(block.substr(0, 2) == raw(stored.x));
    }
  }
}

TEST_CASE("Q8_0 and Q4_0 round as ggml's reference does", "[gguf_types]") {
  const GGUFType &q8 = *find_gguf_type("Q8_0"), &q4 = *find_gguf_type("Q4_0");

  // If the scale is 1, ties are rounded away from zero.
  std::vector<float> values(32, 0.0F);
  const std::vector<float> first{127, 0.5F, -0.5F, 2.5F, -2.5F, 1.4999F, -126.5F};
  std::ranges::copy(first, values.begin());
  const std::string eight = written(q8, values);
  CHECK(eight.substr(0, 2) == raw(c10::Half(1).x));
  const std::vector<int> rounded{127, 1, -1, 3, -3, 1, -127};
  for (size_t i = 0; i < rounded.size(); ++i)
    CHECK(static_cast<int>(static_cast<int8_t>(eight[2 + i])) == rounded[i]);

  // Among numbers of the largest magnitude, the first number becomes -8 times the scale.
  for (const float sign : {1.0F, -1.0F}) {
    values.assign(32, 0.0F);
    values[3] = -8 * sign;
    values[4] = 8 * sign;
    values[20] = 2.5F * sign;
    values[21] = 2.4F * sign;
    const std::string four = written(q4, values);
    CHECK(four.substr(0, 2) == raw(c10::Half(sign).x));
    CHECK(static_cast<uint8_t>(four[2 + 3]) == (0 | 8 << 4));
    CHECK(static_cast<uint8_t>(four[2 + 4]) == (15 | 11 << 4));  // 2.5 + 8.5
    CHECK(static_cast<uint8_t>(four[2 + 5]) == (8 | 10 << 4));   // 2.4 + 8.5
  }

  // Test zeros, and numbers whose scale is 0 in float16.
  for (const float tiny : {0.0F, 1e-10F, std::numeric_limits<float>::denorm_min()}) {
    values.assign(32, tiny);
    for (const GGUFType* type : {&q8, &q4})
      for (const float x : read_all(*type, written(*type, values))) CHECK(x == 0);
  }
}

TEST_CASE("quantized blocks agree with LibTorch's arithmetic, and quantize to the same bytes again",
          "[gguf_types]") {
  torch::manual_seed(3);
  const at::Tensor rows = at::randn({400, 32}) * at::logspace(-3, 3, 400).unsqueeze(1);
  const GGUFType &q8 = *find_gguf_type("Q8_0"), &q4 = *find_gguf_type("Q4_0");
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const at::Tensor x = rows[row];
    const std::vector<float> values(x.data_ptr<float>(), x.data_ptr<float>() + 32);

    const at::Tensor scale8 = x.abs().max() / 127, y8 = x * (1 / scale8), a = y8.abs();
    const at::Tensor q = y8.sign() * (a.floor() + (2 * (a - a.floor())).floor());
    std::string wanted = raw(c10::Half(scale8.item<float>()).x);
    for (int64_t i = 0; i < 32; ++i) wanted += raw(static_cast<int8_t>(q[i].item<float>()));
    const std::string eight = written(q8, values);
    REQUIRE(eight == wanted);
    REQUIRE(written(q8, read_all(q8, eight)) == eight);

    const at::Tensor scale4 = x[x.abs().argmax()] / -8;
    const at::Tensor u = (x * (1 / scale4) + 8.5).trunc().clamp(0, 15);
    wanted = raw(c10::Half(scale4.item<float>()).x);
    for (int64_t i = 0; i < 16; ++i)
      wanted += static_cast<char>(static_cast<int>(u[i].item<float>()) |
                                  static_cast<int>(u[i + 16].item<float>()) << 4);
    const std::string four = written(q4, values);
    REQUIRE(four == wanted);
    REQUIRE(written(q4, read_all(q4, four)) == four);
  }

  // A scale beyond float16's range is refused, and the largest scale within the range is accepted.
  for (const auto& [type, steps] : {std::pair(&q8, 127.0F), {&q4, 8.0F}}) {
    std::string block(type->bytes, '\0');
    for (const float scale : {65504.0F, 65519.0F, 65520.0F, 1e9F}) {
      const std::vector<float> large(32, scale * steps);
      CHECK(type->write(large.data(), reinterpret_cast<std::byte*>(block.data())) ==
            (scale < 65520.0F));
    }
  }
}

}  // namespace
