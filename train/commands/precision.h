// Experiments that show why mixed precision works as it does; docs/reference/precision.md has their
// tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/session/load.h"

namespace lathe {

/// Relative errors of sums over n positive terms of a low precision, compared with sums in float64.
struct AccumulationError {
  int64_t n = 0;
  at::ScalarType dtype = at::kHalf;
  /// Dot products: summed in dtype, in float32, and by the linear op.
  double dot_low = 0, dot_fp32 = 0, dot_op = 0;
  /// Norms: summed in dtype, in float32, and by the optimizer.
  double norm_low = 0, norm_fp32 = 0, norm_op = 0;
};
/// Returns the errors for fp16 and bf16 and n = 10^3 ... 10^max_power. Terms are products of
/// numbers that are uniform in (0, 1/32), so that no sum exceeds float16's range.
std::vector<AccumulationError> accumulation_errors(int max_power);
/// Returns the errors as a Markdown table.
std::string accumulation_table(const std::vector<AccumulationError>& errors);

/// Exponents of the gradients of a model's matmul, attention and GELU outputs, as in figure 3 of
/// Micikevicius et al. 2018, and how many of the gradients become zero in float16.
struct GradientExponents {
  static constexpr int lowest = -60, highest = 20;
  std::vector<double> activations,
      weights;       ///< share of elements with floor(log2|g|) = lowest + i, clamped to the ends
  double zeros = 0;  ///< share of activation gradients that are zero in float32 already
  struct Pass {
    std::string name;
    double scale = 1;
    double zeros =
        0;  ///< share of elements that are zero in a float16 pass at that scale but not in float32
    bool overflow = false;
  };
  std::vector<Pass> passes;  ///< at loss scales 1, 8, 1024, and where dynamic scaling settles
};
/// Runs `batches` training batches of the model's data forward and backward, in float32 and in
/// float16.
GradientExponents gradient_exponents(const LoadedModel& model, int64_t batches);
/// Returns the exponents as a histogram in text, followed by a line for each pass.
std::string exponents_text(const GradientExponents& e);
/// Returns the histogram as an SVG picture.
std::string exponents_svg(const GradientExponents& e);
/// A mark that is among the first bytes of exponents_svg().
constexpr const char* svg_mark = ">zero in float16</text>";

}  // namespace lathe
