// Tests of describe_tensor(), may_share_memory() and the table of float formats.
#include <cmath>
#include <limits>

#include "autograd/create.h"
#include "autograd/facts.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/float_format.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

/// Compares a format's numbers with std::numeric_limits of the type T that has the format.
template <class T>
void check_format(const FloatFormat& f) {
  INFO(f.name);
  using Limits = std::numeric_limits<T>;
  CHECK(f.bits() == static_cast<int>(8 * sizeof(T)));
  CHECK(f.mantissa == Limits::digits - 1);
  CHECK(f.largest() == static_cast<double>(static_cast<float>(Limits::max())));
  CHECK(f.smallest_normal() == static_cast<double>(static_cast<float>(Limits::min())));
  CHECK(f.smallest_subnormal() == static_cast<double>(static_cast<float>(Limits::denorm_min())));
  CHECK(f.epsilon() == static_cast<double>(static_cast<float>(Limits::epsilon())));
  CHECK(f.infinities == Limits::has_infinity);
}

TEST_CASE("the numbers of float formats agree with their C++ types", "[tensor_facts]") {
  const auto& all = float_formats();
  const auto of = [&](const std::string& name) {
    return *std::find_if(all.begin(), all.end(),
                         [&](const FloatFormat& f) { return f.name == name; });
  };
  REQUIRE(all.size() == 6);
  check_format<float>(of("fp32"));
  check_format<c10::Half>(of("fp16"));
  check_format<c10::BFloat16>(of("bf16"));
  check_format<c10::Float8_e4m3fn>(of("e4m3"));
  check_format<c10::Float8_e5m2>(of("e5m2"));

  // No C++ type has the format TF32, which is float32 without the last 13 bits of the mantissa.
  const FloatFormat tf32 = of("tf32");
  CHECK(tf32.bits() == 32);
  CHECK(tf32.epsilon() == std::ldexp(std::numeric_limits<float>::epsilon(), 13));
  CHECK(tf32.smallest_normal() == std::numeric_limits<float>::min());

  const uint32_t largest = 0x7f7fffffu & ~0x1fffu;
  float value = 0;
  std::memcpy(&value, &largest, sizeof value);
  CHECK(tf32.largest() == value);

  // Find the largest and the smallest positive number among all bit patterns of e4m3.
  double most = 0, least = 1;
  for (int bits = 0; bits < 128; ++bits) {
    const auto x = static_cast<double>(
        static_cast<float>(c10::Float8_e4m3fn(bits, c10::Float8_e4m3fn::from_bits())));
    if (std::isfinite(x)) most = std::max(most, x);
    if (x > 0) least = std::min(least, x);
  }
  CHECK(of("e4m3").largest() == most);
  CHECK(of("e4m3").smallest_subnormal() == least);

  CHECK_THAT(float_format_table(),
             ContainsSubstring("e4m3      8        4        3            448"));
}

TEST_CASE("a tensor's facts: dtype, shape, strides, storage, what it is a view of",
          "[tensor_facts]") {
  const Variable w = Variable::parameter(torch::zeros({2, 3}), "w");
  CHECK(describe_tensor(w) ==
        "float32[2,3], strides [3,1], contiguous, elements 0 to 5 of a storage of 24 bytes on cpu "
        "that 1 tensor holds; "
        "parameter w");
  const Variable t = transpose(w, 0, 1);
  CHECK(describe_tensor(t) ==
        "float32[3,2], strides [1,3], not contiguous, elements 0 to 5 of a storage of 24 bytes on "
        "cpu that 2 tensors "
        "hold; a view, by transpose of the parameter w");
  CHECK_THAT(describe_tensor(slice(t, 0, 1, 2)),
             ContainsSubstring("[1,2], strides [1,3], not contiguous, elements 1 to 4"));
  CHECK_THAT(describe_tensor(slice(t, 0, 1, 2)),
             ContainsSubstring("a view, by slice of the result of transpose"));
  CHECK_THAT(describe_tensor(exp(w) * 2.0),
             ContainsSubstring("1 tensor holds; by mul_scalar of the result of exp"));
  CHECK_THAT(describe_tensor(w * Variable(torch::ones({3}))),
             ContainsSubstring("by mul of the parameter w, a constant"));
  CHECK_THAT(describe_tensor(Variable(torch::ones({4}, at::kHalf).slice(0, 2))),
             ContainsSubstring(
                 "float16[2], strides [1], contiguous, elements 2 to 3 of a storage of 8 bytes"));
  CHECK_THAT(describe_tensor(torch::empty({0, 3})), ContainsSubstring("no elements"));
  CHECK_THAT(describe_tensor(torch::empty({2}, at::kMeta)),
             ContainsSubstring("a shape without storage"));
  CHECK(describe_tensor(Variable()) == "undefined");
  w.leaf().frozen = true;
  CHECK_THAT(describe_tensor(w), ContainsSubstring("frozen parameter w"));

  const at::Tensor base = torch::zeros({4, 4});
  CHECK(may_share_memory(base, base.select(0, 1)));
  CHECK(!may_share_memory(base.select(0, 0), base.select(0, 1)));
  CHECK(may_share_memory(base.select(1, 0), base.select(0, 1)));
  CHECK(!may_share_memory(base, base.clone()));
}

}  // namespace
