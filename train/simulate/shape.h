// Declares the shape of a transformer and a step of its training, in the form that the simulator
// uses. Sizes are in elements. A multiplication and an addition count as two FLOPs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lathe {

/// Returns a count as a double, for the formulas of the simulator.
inline double as_double(int64_t count) { return static_cast<double>(count); }

/// The dtype of matrix products.
enum class MatmulDtype { fp32, tf32, bf16, fp8 };

/// Holds the sizes of a decoder-only transformer (gpt, llama).
struct TransformerShape {
  int64_t layers = 1, width = 1, heads = 1, kv_heads = 1, head_width = 1;
  int64_t hidden = 1;  ///< units of the feed-forward part
  int64_t vocab = 1, sequence = 1;
  int64_t window = 0;   ///< tokens that a query attends to in windowed layers; 0: no such layers
  double windowed = 0;  ///< share of the layers that have a window
  bool gated = false;   ///< whether the feed-forward part has three matrices, like SwiGLU
  bool tied = true;     ///< whether the head shares the embedding's weight
  bool learned_positions = false;  ///< whether the model has an embedding of positions
  bool bias = false;               ///< whether linear layers and norms have biases

  /// Returns the parameters of a layer's matrices.
  double layer_matrices() const;
  /// Returns all parameters of a layer.
  double layer_parameters() const;
  /// Returns all parameters of the model.
  double parameters() const;
  /// Returns the number of pairs of a query and a key that a causal kernel computes in a sequence,
  /// averaged over the layers. In a layer, the number is half of T^2, or W (T - W / 2) for a window
  /// W below T.
  double attended_pairs() const;
  /// Returns the FLOPs of a token in training: 6 N + 12 L (heads x head_width) T (Chowdhery et al.
  /// 2022, appendix B). N is that of GPT::flops_per_unit. For layers with a window, the window's
  /// size replaces T.
  double flops_per_token() const;
};

/// Describes a training step: a model, its batch and its arithmetic.
struct StepWorkload {
  TransformerShape shape{};
  int64_t global_batch = 1;  ///< sequences of an optimizer step
  MatmulDtype dtype = MatmulDtype::bf16;
  /// Bytes of optimizer state for a parameter besides its fp32 master: 8 for Adam's two moments.
  double state_bytes = 8;
  bool master = true;  ///< whether weights in 2 bytes have an fp32 master
  // The following members describe what Lathe does not support. The simulation does not depend on
  // them.
  /// Holds the reasons why Lathe can't divide this run along an axis. A reason is empty if it can.
  struct AxisFaults {
    std::string data{}, tensor{}, context{}, pipeline{}, virtual_stages{};
  };
  AxisFaults faults{};
  /// Numbers that must be multiples of the number of tensor ranks. Each has the name of what it
  /// counts, such as "heads".
  std::vector<std::pair<int64_t, std::string>> tensor_units{};

  /// Returns the tokens of an optimizer step.
  double tokens() const {
    return static_cast<double>(global_batch) * static_cast<double>(shape.sequence);
  }
  /// Returns the bytes of an element of activations, and of weights in the form that matmuls use.
  double element_bytes() const {
    return dtype == MatmulDtype::fp32 || dtype == MatmulDtype::tf32 ? 4 : 2;
  }
  /// Returns whether parameters have an fp32 master besides the weight that matmuls use.
  bool has_master() const { return master && element_bytes() < 4; }
};

}  // namespace lathe
