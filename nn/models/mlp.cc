#include "nn/models/mlp.h"

#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

Variable (*activation_of(const std::string& name))(const Variable&) {
  if (name == "gelu") return [](const Variable& x) { return gelu(x); };
  if (name == "silu") return silu;
  if (name == "tanh") return tanh;
  LATHE_CHECK(name == "relu", "mlp: no activation is called ", name);
  return relu;
}

}  // namespace

MLPLayer::MLPLayer(const MLPConfig& c, int64_t in)
    : linear(in, c.n_hidden, /*with_bias=*/true),
      activation(activation_of(c.activation)),
      drop(c.dropout) {
  if (c.norm == "layer") layer_norm.emplace(c.n_hidden, /*with_bias=*/true);
  if (c.norm == "batch") batch_norm.emplace(c.n_hidden);
}

Variable MLPLayer::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'H', linear.weight.size(0)}});
  Variable y = linear(x);
  if (layer_norm) y = (*layer_norm)(y);
  if (batch_norm) y = (*batch_norm)(y);
  return call.result(drop(activation(y)), "B H");
}

MLP::MLP(const MLPConfig& c, const ModelSizes& sizes)
    : config(c), features(c10::multiply_integers(sizes.input)) {
  LATHE_CHECK(features >= 1 && sizes.outputs >= 1, "mlp: inputs of ", features, " numbers and ",
              sizes.outputs, " outputs; both must be at least 1");
  int64_t in = features;
  for (int64_t i = 0; i < c.n_layer; ++i, in = c.n_hidden) layers.emplace_back(c, in);
  head = Linear(in, sizes.outputs, /*with_bias=*/true, Role::head);
  assign_random_streams(*this);
}

Variable MLP::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'O', head.weight.size(0)}});
  LATHE_CHECK(x.dim() >= 1 && x.numel() == x.size(0) * features, "mlp: inputs must have ", features,
              " numbers per sample, got ", describe(x.data()));
  const Variable h = reshape(x, {x.size(0), features});
  return call.result(head(run_blocks(layers, h)), "B O");
}

double MLP::flops_per_unit() const {
  double weights = static_cast<double>(head.weight.numel());
  for (const MLPLayer& layer : layers) weights += static_cast<double>(layer.linear.weight.numel());
  return 6 * weights;
}

int64_t parameter_count(const MLPConfig& c, const ModelSizes& sizes) {
  const int64_t in = c10::multiply_integers(sizes.input),
                norm = c.norm == "none" ? 0 : 2 * c.n_hidden;
  if (c.n_layer == 0) return (in + 1) * sizes.outputs;
  return (in + 1) * c.n_hidden + (c.n_layer - 1) * (c.n_hidden + 1) * c.n_hidden +
         c.n_layer * norm + (c.n_hidden + 1) * sizes.outputs;
}

std::optional<MLPConfig> MLP::scale_down(const MLPConfig& config) {
  MLPConfig c = config;
  if (halve(c.n_layer, 2) || halve(c.n_hidden, 64)) return c;
  return std::nullopt;
}

}  // namespace lathe
