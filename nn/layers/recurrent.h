// Recurrent layers, batch first. One product projects all time steps of a layer's input; then a step is a product with
// the state and a fused cell. Weights have torch's names, shapes and order of gates. Shapes: B batch, T time, C
// channels of the input, H units, L layers.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module.h"

namespace lathe {

/// What LSTM and GRU share.
struct Recurrent {
  struct Layer {
    Variable weight_ih, weight_hh, bias_ih, bias_hh;  ///< [G H, C or H], [G H, H], [G H] each or undefined; G gates
  };
  std::vector<Layer> layers;
  Dropout drop;  ///< on what goes from a layer to the next
  int64_t hidden = 0;

  Recurrent() = default;
  Recurrent(int64_t gates, int64_t in, int64_t hidden, int64_t n_layer, bool bias, double dropout);
  /// "weight_ih_l0", ...
  void visit(Visit& v);

 protected:
  /// x with time first for a layer's steps, the next ones after dropout; and back.
  Variable time_first(const Variable& x_BTC) const;
  Variable next_input(const Variable& y_TBH, size_t layer) const;
  /// A state's layers, each [B, H], of `dtype`: those given as [L, B, H], or zeros where that is undefined.
  std::vector<Variable> split_state(const char* name, const Variable& given, const Variable& x_BTC,
                                    at::ScalarType dtype) const;
};

/// What an LSTM goes on from: [L, B, H] each; undefined: zeros.
struct LSTMState {
  Variable h, c;
};
/// Hochreiter and Schmidhuber 1997; Gers et al. 2000.
struct LSTM : Recurrent {
  LSTM() = default;
  LSTM(int64_t in, int64_t hidden, int64_t n_layer = 1, bool bias = true, double dropout = 0)
      : Recurrent(4, in, hidden, n_layer, bias, dropout) {}
  /// [B, T, C] -> the last layer's [B, T, H], and each layer's state after the last step. T is above 0. Under autocast
  /// c stays in float32.
  std::pair<Variable, LSTMState> operator()(const Variable& x_BTC, const LSTMState& before = {}) const;
};

/// Cho et al. 2014, with the reset gate after the product, as cuDNN and torch have it.
struct GRU : Recurrent {
  GRU() = default;
  GRU(int64_t in, int64_t hidden, int64_t n_layer = 1, bool bias = true, double dropout = 0)
      : Recurrent(3, in, hidden, n_layer, bias, dropout) {}
  /// The same with a state h [L, B, H] alone.
  std::pair<Variable, Variable> operator()(const Variable& x_BTC, const Variable& h_LBH = {}) const;
};

}  // namespace lathe
