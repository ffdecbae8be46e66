#include "core/float_format.h"

#include <cmath>

#include "core/io/text.h"

namespace lathe {
namespace {

int bias(const FloatFormat& f) { return (1 << (f.exponent - 1)) - 1; }

}  // namespace

double FloatFormat::largest() const {
  // The largest number has the largest exponent that encodes numbers, and all mantissa bits set. In
  // a format without infinities, this pattern is NaN, so the last mantissa bit of the largest
  // number is 0.
  const int top = (1 << exponent) - 1 - bias(*this) - (infinities ? 1 : 0);
  const double fraction = 2 - std::ldexp(1, -mantissa) * (infinities ? 1 : 2);
  return std::ldexp(fraction, top);
}
double FloatFormat::smallest_normal() const { return std::ldexp(1, 1 - bias(*this)); }
double FloatFormat::smallest_subnormal() const { return std::ldexp(1, 1 - bias(*this) - mantissa); }
double FloatFormat::epsilon() const { return std::ldexp(1, -mantissa); }

const std::vector<FloatFormat>& float_formats() {
  // The members of each format: name, exponent, mantissa, infinities, stored.
  static const std::vector<FloatFormat> formats{{"fp32", 8, 23},       {"tf32", 8, 10, true, 32},
                                                {"fp16", 5, 10},       {"bf16", 8, 7},
                                                {"e4m3", 4, 3, false}, {"e5m2", 5, 2}};
  return formats;
}

std::string float_format_table() {
  std::string out =
      format("%-6s %4s %8s %8s %14s %16s %19s %12s\n", "format", "bits", "exponent", "mantissa",
             "largest", "smallest normal", "smallest subnormal", "epsilon");
  for (const FloatFormat& f : float_formats()) {
    out +=
        format("%-6s %4d %8d %8d %14.8g %16.8g %19.8g %12.8g\n", f.name, f.bits(), f.exponent,
               f.mantissa, f.largest(), f.smallest_normal(), f.smallest_subnormal(), f.epsilon());
  }
  return out;
}

}  // namespace lathe
