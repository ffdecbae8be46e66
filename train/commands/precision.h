// Runs experiments that show why mixed precision works as it does. docs/reference/precision.md has
// their tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/session/load.h"

namespace lathe {

/// Relative errors of sums of n positive terms in low precision, compared with the same sums in
/// float64.
struct AccumulationError {
  int64_t n = 0;
  at::ScalarType dtype = at::kHalf;
  /// Errors of dot products: summed in `dtype`, summed in float32, and computed by the linear op.
  double dot_low = 0, dot_fp32 = 0, dot_op = 0;
  /// Errors of norms: summed in `dtype`, summed in float32, and computed by the optimizer.
  double norm_low = 0, norm_fp32 = 0, norm_op = 0;
};
/// Returns the errors for fp16 and bf16, each for n = 10^3 ... 10^max_power. Terms are products of
/// numbers that are uniform in (0, 1/32), so that no sum exceeds float16's range.
std::vector<AccumulationError> accumulation_errors(int max_power);
/// Returns the errors as a Markdown table.
std::string accumulation_table(const std::vector<AccumulationError>& errors);

/// A histogram of the exponents of a model's gradients, as in figure 3 of Micikevicius et al. 2018,
/// and how many gradients become zero in float16. `activations` counts the gradients of matmul,
/// attention and GELU outputs; `weights` counts the gradients of weights.
struct GradientExponents {
  static constexpr int lowest = -60, highest = 20;
  std::vector<double> activations,
      weights;       ///< element i: fraction with floor(log2|g|) = lowest + i, clamped to the ends
  double zeros = 0;  ///< fraction of activation gradients that are zero in float32
  struct Pass {
    std::string name;
    double scale = 1;
    double zeros =
        0;  ///< fraction of elements that are zero in float16 at this scale but not in float32
    bool overflow = false;
  };
  /// One pass at each of the loss scales 1, 8 and 1024, and one at the scale where dynamic scaling
  /// settles.
  std::vector<Pass> passes;
};
/// Runs forward and backward passes of `batches` training batches of the model's data, in float32
/// and in float16.
GradientExponents gradient_exponents(const LoadedModel& model, int64_t batches);
/// Returns the histogram as text, followed by a line for each pass.
std::string exponents_text(const GradientExponents& e);
/// Returns the histogram as an SVG picture.
std::string exponents_svg(const GradientExponents& e);
/// A text among the first bytes of exponents_svg(), for check_output().
constexpr const char* svg_mark = ">zero in float16</text>";

}  // namespace lathe
