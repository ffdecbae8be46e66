// Recurrent layers, batch first. One matrix product projects all time steps of a layer's input.
// Then each step multiplies the state by a matrix and computes a cell. Weights have torch's names,
// shapes and order of gates. Shapes: B batch, T time, C channels of the input, H units, L layers
// times directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "nn/layers/dropout.h"
#include "nn/module.h"

namespace lathe {

struct RecurrentOptions {
  int64_t n_layer = 1;
  bool bias = true;
  double dropout = 0;  ///< rate of dropout between layers
  /// Adds a second set of layers, which reads sequences from end to start. The results of both
  /// directions of a layer are concatenated.
  bool bidirectional = false;
};

/// The common part of SimpleRNN, LSTM and GRU. All three take an optional `lengths` for sequences
/// that end before T: int64 [B] on the CPU, from 1 to T. Beyond a sequence's length, the results
/// are zeros. As with torch's packed sequences, a sequence's last state is the state at its end,
/// and the reverse direction begins at its end.
struct Recurrent {
  /// The parameters of one layer in one direction.
  struct Layer {
    Variable weight_ih, weight_hh, bias_ih,
        bias_hh;  ///< weights [G H, C or H] and [G H, H]; biases [G H], or undefined without bias;
                  ///< G gates
  };
  std::vector<Layer> layers;  ///< for each layer, the forward and then the reverse direction
  Dropout drop;
  int64_t hidden = 0;
  bool bidirectional = false;

  Recurrent() = default;
  Recurrent(int64_t gates, int64_t in, int64_t hidden, const RecurrentOptions& options);
  /// Visits the parameters by torch's names: "weight_ih_l0", "weight_ih_l0_reverse", ...
  void visit(Visit& v);

 protected:
  /// The data that a layer passes to the next layer.
  struct Sequence {
    Variable x_TBC;
    std::vector<Variable> h, c;  ///< last states [B, H] so far, of each layer and direction
  };
  /// Runs all layers. For each layer, calls project(weights, x_TBC) -> [T, B, G H], and then for
  /// each step cell(weights, projection of the step, h, c) -> the next {h, c}. c is undefined
  /// unless `with_c` is true. If there are no `lengths` and `all_steps` is not null, calls
  /// all_steps(weights, x_TBC, h, c, reverse) -> {h of each step, last c} instead of `project` and
  /// `cell`.
  template <class Module, class Project, class Cell, class AllSteps = std::nullptr_t>
  Sequence run(const Module& module, const Variable& x_BTC, const Variable& h_LBH,
               const Variable& c_LBH, const at::Tensor& lengths, bool with_c, Project project,
               Cell cell, AllSteps all_steps = nullptr) const;
};

/// The state of an LSTM. Both members are [L, B, H]; an undefined member stands for zeros.
struct LSTMState {
  Variable h, c;
};
/// Long short-term memory. Hochreiter and Schmidhuber 1997; Gers et al. 2000.
struct LSTM : Recurrent {
  LSTM() = default;
  LSTM(int64_t in, int64_t hidden, const RecurrentOptions& options = {})
      : Recurrent(4, in, hidden, options) {}
  /// Maps x [B, T, C] to the h of the last layer at each step, [B, T, H or 2 H], and the state of
  /// each layer after the last step. T is at least 1. Under autocast c stays in float32.
  std::pair<Variable, LSTMState> operator()(const Variable& x_BTC, const LSTMState& before = {},
                                            const at::Tensor& lengths = {}) const;
};

/// Gated recurrent unit. Cho et al. 2014, with the reset gate applied after the matrix product, as
/// in cuDNN and torch.
struct GRU : Recurrent {
  GRU() = default;
  GRU(int64_t in, int64_t hidden, const RecurrentOptions& options = {})
      : Recurrent(3, in, hidden, options) {}
  /// Maps x [B, T, C] like LSTM, but the state is only h [L, B, H].
  std::pair<Variable, Variable> operator()(const Variable& x_BTC, const Variable& h_LBH = {},
                                           const at::Tensor& lengths = {}) const;
};

/// Computes h' = activation(W x + b + W' h + b') at each step. Elman 1990; torch.nn.RNN.
struct SimpleRNN : Recurrent {
  std::string activation = "tanh";  ///< "tanh" or "relu"

  SimpleRNN() = default;
  SimpleRNN(int64_t in, int64_t hidden, const RecurrentOptions& options = {},
            const std::string& activation = "tanh");
  /// Maps x [B, T, C] like GRU.
  std::pair<Variable, Variable> operator()(const Variable& x_BTC, const Variable& h_LBH = {},
                                           const at::Tensor& lengths = {}) const;
};

}  // namespace lathe
