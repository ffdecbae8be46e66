#include "train/simulate/shape.h"

namespace lathe {

double TransformerShape::layer_matrices() const {
  const auto c = static_cast<double>(width), d = static_cast<double>(head_width);
  const auto queries = static_cast<double>(heads) * d, keys = static_cast<double>(kv_heads) * d;
  return c * (queries + 2 * keys) + queries * c + (gated ? 3 : 2) * c * static_cast<double>(hidden);
}

double TransformerShape::layer_parameters() const {
  const auto c = static_cast<double>(width), d = static_cast<double>(head_width);
  const double biases = static_cast<double>(heads + 2 * kv_heads) * d + c +
                        (gated ? 2 : 1) * static_cast<double>(hidden) + c;
  // Two norms, whose biases count among the others.
  return layer_matrices() + 2 * c + (bias ? biases + 2 * c : 0);
}

double TransformerShape::parameters() const {
  const auto c = static_cast<double>(width), v = static_cast<double>(vocab);
  return static_cast<double>(layers) * layer_parameters() + (tied ? 1 : 2) * v * c +
         (learned_positions ? static_cast<double>(sequence) * c : 0) + (bias ? 2 : 1) * c;
}

double TransformerShape::flops_per_token() const {
  const auto l = static_cast<double>(layers), t = static_cast<double>(sequence);
  const auto matmul = parameters() -
                      (tied ? 0 : static_cast<double>(vocab) * static_cast<double>(width)) -
                      (learned_positions ? t * static_cast<double>(width) : 0);
  return 6 * matmul + 12 * l * static_cast<double>(heads * head_width) * t;
}

}  // namespace lathe
