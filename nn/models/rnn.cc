#include "nn/models/rnn.h"

#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

int64_t gates_of(const RNNConfig& c) { return c.cell == "lstm" ? 4 : 3; }

}  // namespace

std::optional<ConfigFault> RNN::check(const RNNConfig& c) {
  if (!c.tie_weights || c.n_embd == c.n_hidden) return std::nullopt;
  return ConfigFault{{"tie_weights", "n_embd", "n_hidden"},
                     str("tied weights need n_embd and n_hidden to be equal, not ", c.n_embd,
                         " and ", c.n_hidden, "; set tie_weights = false, or make them equal")};
}

RNN::RNN(const RNNConfig& c)
    : config(c),
      tokens(c.vocab_size, c.n_embd, c.tie_weights ? Role::tied_embedding : Role::embedding),
      embedded_drop(c.dropout),
      features_drop(c.dropout) {
  if (const auto fault = check(c)) fail(Exit::usage, "rnn: ", fault->what);
  const RecurrentOptions options{.n_layer = c.n_layer, .dropout = c.dropout};
  if (c.cell == "lstm") {
    lstm.emplace(c.n_embd, c.n_hidden, options);
  } else {
    gru.emplace(c.n_embd, c.n_hidden, options);
  }
  if (!c.tie_weights) head = Linear(c.n_hidden, c.vocab_size, /*with_bias=*/false, Role::head);
  assign_random_streams(*this);
}

Variable RNN::features(const at::Tensor& ids_BT) const {
  ModuleCall call(*this, {{'H', config.n_hidden}});
  call.input("ids", ids_BT, "B T");
  LATHE_CHECK(ids_BT.size(1) <= config.block_size, "RNN: ", ids_BT.size(1),
              " tokens exceed the context of ", config.block_size);
  const Variable x_BTC = embedded_drop(tokens(ids_BT));
  return call.result(features_drop(lstm ? (*lstm)(x_BTC).first : (*gru)(x_BTC).first), "B T H");
}

Variable RNN::operator()(const at::Tensor& ids_BT) const {
  return linear(features(ids_BT), head_weight());
}

double RNN::flops_per_unit() const {
  const Recurrent& layers = lstm ? static_cast<const Recurrent&>(*lstm) : *gru;
  double weights = static_cast<double>(head_weight().numel());
  for (const Recurrent::Layer& l : layers.layers)
    weights += static_cast<double>(l.weight_ih.numel() + l.weight_hh.numel());
  return 6 * weights;
}

int64_t parameter_count(const RNNConfig& c) {
  const int64_t rows = gates_of(c) * c.n_hidden, later = c.n_layer - 1;
  return c.vocab_size * (c.n_embd + (c.tie_weights ? 0 : c.n_hidden)) +
         rows * (c.n_embd + c.n_hidden + 2) + later * rows * (2 * c.n_hidden + 2);
}

std::optional<RNNConfig> RNN::scale_down(const RNNConfig& config) {
  RNNConfig c = config;
  if (halve(c.n_layer, 2) || halve(c.block_size, 512) || halve(c.vocab_size, 8192)) return c;

  // Halve n_embd and n_hidden together, so that tied weights still fit.
  const bool fewer_channels = halve(c.n_embd, 64), fewer_units = halve(c.n_hidden, 64);
  if (!fewer_channels && !fewer_units) return std::nullopt;
  return c;
}

}  // namespace lathe
