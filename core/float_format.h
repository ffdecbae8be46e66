// Describes floating-point formats by the layout of their bits. References: IEEE 754-2019; Kalamkar
// et al. 2019 (bfloat16); Micikevicius et al. 2022 (e4m3, e5m2).
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// A format with a sign bit, `exponent` bits with a bias of 2^(exponent - 1) - 1, and `mantissa`
/// bits that follow an implied leading 1.
struct FloatFormat {
  const char* name;
  int exponent, mantissa;
  bool infinities = true;  ///< true: the largest exponent encodes infinities and NaN; false: it
                           ///< encodes numbers, except that NaN has all exponent and mantissa bits
                           ///< set
  int stored = 0;          ///< number of bits that a number takes in memory, if there are unused
                           ///< bits; otherwise 0

  int bits() const { return stored > 0 ? stored : 1 + exponent + mantissa; }
  double largest() const;             ///< largest finite number
  double smallest_normal() const;     ///< smallest positive number with the leading 1
  double smallest_subnormal() const;  ///< smallest positive number
  double epsilon() const;             ///< distance from 1 to the next number
};

/// Returns the formats fp32, tf32, fp16, bf16, e4m3 and e5m2.
const std::vector<FloatFormat>& float_formats();
/// Returns a table with a line for each format.
std::string float_format_table();

}  // namespace lathe
