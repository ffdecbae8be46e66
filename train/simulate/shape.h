// Declares the shape of a transformer and a step of its training, in the form that the simulator
// uses. Sizes are in elements. A multiply-add counts as two FLOPs.
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
  int64_t window = 0;     ///< tokens that a query attends to in windowed layers; 0: no such layers
  double windowed = 0;    ///< share of the layers that have a window
  bool gated = false;     ///< whether the feed-forward part has three matrices, as in SwiGLU
  bool tied = true;       ///< whether the head shares the embedding's weight
  int64_t positions = 0;  ///< rows of the embedding of positions; 0: no such embedding
  bool bias = false;      ///< whether linear layers and norms have biases

  /// Returns the number of parameters in the matrices of a layer.
  double layer_matrices() const;
  /// Returns the number of all parameters of a layer.
  double layer_parameters() const;
  /// Returns the number of all parameters of the model.
  double parameters() const;
  /// Returns the number of pairs of a query and a key that a causal kernel computes in a sequence
  /// of T tokens, averaged over the layers. A layer without a window has T^2 / 2 pairs. A layer
  /// with a window of W < T tokens has W (T - W / 2) pairs.
  double attended_pairs() const;
  /// Returns the training FLOPs of a token: 6 N + 12 L (heads x head_width) T (Chowdhery et al.
  /// 2022, appendix B). N is the number of parameters without position embeddings and an untied
  /// token embedding, L is the number of layers, and T is the sequence length. In layers with a
  /// window, the size of the window replaces T.
  double flops_per_token() const;
};

/// Describes a training step: a model, its batch and its arithmetic.
struct StepWorkload {
  TransformerShape shape{};
  int64_t global_batch = 1;  ///< sequences of an optimizer step
  MatmulDtype dtype = MatmulDtype::bf16;
  /// Bytes of optimizer state per parameter, without its fp32 master: 8 for Adam's two moments.
  double state_bytes = 8;
  bool master = true;  ///< whether weights of 2 bytes each have an fp32 master
  // The following members describe which layouts Lathe can't train. The simulation does not depend
  // on them.
  /// Holds, for each axis, the reason why Lathe can't divide this run along it; empty if it can.
  struct AxisFaults {
    std::string data{}, tensor{}, context{}, pipeline{}, virtual_stages{};
  };
  AxisFaults faults{};
  /// Whether the run updates parameters in the backward pass, for which Lathe needs one micro-batch
  /// per batch group and complete parameters.
  bool updates_in_backward = false;
  /// Numbers of units, each with the name of the unit, such as "heads". Lathe can divide the model
  /// among tensor ranks only if the number of tensor ranks divides all these numbers.
  std::vector<std::pair<int64_t, std::string>> tensor_units{};

  /// Returns the number of tokens of an optimizer step.
  double tokens() const {
    return static_cast<double>(global_batch) * static_cast<double>(shape.sequence);
  }
  /// Returns the bytes of an activation. A weight that matmuls use takes as many bytes.
  double element_bytes() const {
    return dtype == MatmulDtype::fp32 || dtype == MatmulDtype::tf32 ? 4 : 2;
  }
  /// Returns whether parameters have an fp32 master besides the weight that matmuls use.
  bool has_master() const { return master && element_bytes() < 4; }
};

}  // namespace lathe
