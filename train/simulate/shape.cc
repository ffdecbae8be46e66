#include "train/simulate/shape.h"

#include <algorithm>

namespace lathe {

double TransformerShape::layer_matrices() const {
  const auto c = as_double(width), d = as_double(head_width);
  const auto queries = as_double(heads) * d, keys = as_double(kv_heads) * d;
  return c * (queries + 2 * keys) + queries * c + (gated ? 3 : 2) * c * as_double(hidden);
}

double TransformerShape::layer_parameters() const {
  const auto c = as_double(width), d = as_double(head_width);
  const double biases =
      as_double(heads + 2 * kv_heads) * d + c + (gated ? 2 : 1) * as_double(hidden) + c;
  // Two norms have 2 c weights and, with biases, 2 c biases.
  return layer_matrices() + 2 * c + (bias ? biases + 2 * c : 0);
}

double TransformerShape::parameters() const {
  const auto c = as_double(width), v = as_double(vocab);
  return as_double(layers) * layer_parameters() + (tied ? 1 : 2) * v * c +
         as_double(positions) * c + (bias ? 2 : 1) * c;
}

double TransformerShape::attended_pairs() const {
  const auto t = as_double(sequence), w = as_double(window);
  const double causal = t * t / 2, in_window = w < t ? w * (t - w / 2) : causal;
  return windowed * in_window + (1 - windowed) * causal;
}

double TransformerShape::flops_per_token() const {
  const auto l = as_double(layers), t = as_double(sequence);
  const double keys = windowed * std::min(as_double(window), t) + (1 - windowed) * t;
  const auto matmul = parameters() - (tied ? 0 : as_double(vocab) * as_double(width)) -
                      as_double(positions * width);
  return 6 * matmul + 12 * l * as_double(heads * head_width) * keys;
}

}  // namespace lathe
