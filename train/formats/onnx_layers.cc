#include "train/formats/onnx_layers.h"

#include <ATen/ops/cat.h>

#include <cmath>

#include "core/error.h"

namespace lathe {
namespace {

using Ints = std::vector<int64_t>;

/// Returns a weight or bias [G * H, ...] of G gates with H rows each, with the gates arranged in
/// `order`.
at::Tensor in_order(const at::Tensor& t, const Ints& order) {
  const auto gates = t.chunk(static_cast<int64_t>(order.size()), 0);
  std::vector<at::Tensor> ordered;
  for (const int64_t gate : order) ordered.push_back(gates[static_cast<size_t>(gate)]);
  return at::cat(ordered, 0);
}

}  // namespace

OnnxLayers::OnnxLayers(OnnxGraph& graph, const StateDict& state) : graph_(graph) {
  for (const auto& [path, t] : state)
    state_[path] = t.is_floating_point() ? t.to(at::kFloat).contiguous() : t;
}

std::string OnnxLayers::weight(const std::string& path) {
  if (!has(path)) return "";
  std::string& name = added_[path];
  if (name.empty()) name = constant(path, tensor(path));
  return name;
}

std::string OnnxLayers::constant(const std::string& name, const at::Tensor& t) {
  held_.push_back(t.to(at::kFloat).contiguous());
  const at::Tensor& kept = held_.back();
  return graph_.add_constant(name, OnnxType::f32, kept.sizes().vec(),
                             {static_cast<const std::byte*>(kept.const_data_ptr()), kept.nbytes()});
}

std::string OnnxLayers::linear(const std::string& x, const std::string& path) {
  std::vector<std::string> inputs{x, weight(path + ".weight")};
  if (has(path + ".bias")) inputs.push_back(weight(path + ".bias"));
  return graph_.add_node("Gemm", inputs, {{"transB", int64_t{1}}});
}

std::string OnnxLayers::wide_linear(const std::string& x, const std::string& path) {
  std::string y = product(x, path + ".weight");
  if (!has(path + ".bias")) return y;
  return graph_.add_node("Add", {y, weight(path + ".bias")});
}

std::string OnnxLayers::product(const std::string& x, const std::string& weight_path) {
  // The graph transposes the weight, so that a weight that is tied to an embedding is stored once.
  const std::string turned =
      graph_.add_node("Transpose", {weight(weight_path)}, {{"perm", Ints{1, 0}}});
  return graph_.add_node("MatMul", {x, turned});
}

std::string OnnxLayers::batch_norm(const std::string& x, const std::string& path) {
  return graph_.add_node("BatchNormalization",
                         {x, weight(path + ".weight"), weight(path + ".bias"),
                          weight(path + ".running_mean"), weight(path + ".running_var")},
                         {{"epsilon", 1e-5F}});
}

std::string OnnxLayers::layer_norm(const std::string& x, const std::string& path) {
  std::vector<std::string> inputs{x, weight(path + ".weight")};
  if (has(path + ".bias")) inputs.push_back(weight(path + ".bias"));
  return graph_.add_node("LayerNormalization", inputs, {{"axis", int64_t{-1}}, {"epsilon", 1e-5F}});
}

std::string OnnxLayers::conv(const std::string& x, const std::string& path, int64_t stride,
                             int64_t padding) {
  const Ints pads(4, padding);
  return graph_.add_node("Conv", {x, weight(path + ".weight")},
                         {{"pads", pads}, {"strides", Ints{stride, stride}}});
}

std::string OnnxLayers::scaled(const std::string& x, double factor) {
  return graph_.add_node("Mul", {x, graph_.add_numbers("factor", OnnxType::f32, {factor}, {})});
}

std::string OnnxLayers::activation(const std::string& x, const std::string& name) {
  if (name == "relu") return graph_.add_node("Relu", {x});
  if (name == "tanh") return graph_.add_node("Tanh", {x});
  if (name == "silu") return graph_.add_node("Mul", {x, graph_.add_node("Sigmoid", {x})});

  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as in autograd's Gelu::tanh. ONNX's operator
  // Gelu needs opset 20, which is too new for many programs.
  LATHE_CHECK(name == "gelu", "ONNX: no activation is called ", name);
  const std::string cube = graph_.add_node("Mul", {x, graph_.add_node("Mul", {x, x})});
  const std::string sum = graph_.add_node("Add", {x, scaled(cube, 0.044715)});
  const std::string bent = graph_.add_node("Tanh", {scaled(sum, std::sqrt(2 / M_PI))});
  const std::string one = graph_.add_numbers("one", OnnxType::f32, {1}, {});
  return graph_.add_node("Mul", {scaled(x, 0.5), graph_.add_node("Add", {bent, one})});
}

std::string OnnxLayers::recurrent(const std::string& x, const std::string& path,
                                  const std::string& cell, int64_t n_layer, int64_t hidden) {
  const bool is_lstm = cell == "lstm";
  // PyTorch orders the gates of an LSTM as i, f, g, o, and the gates of a GRU as r, z, n. ONNX has
  // the same gates in the orders i, o, f, c and z, r, h.
  const Ints order = is_lstm ? Ints{0, 3, 1, 2} : Ints{1, 0, 2};
  std::string h = graph_.add_node("Transpose", {x}, {{"perm", Ints{1, 0, 2}}});
  for (int64_t layer = 0; layer < n_layer; ++layer) {
    const auto gates = [&](const char* name) {
      return in_order(tensor(str(path, ".", name, "_l", layer)), order);
    };
    const auto added = [&](const char* name, const at::Tensor& t) {
      return constant(str(path, ".", name, "_l", layer), t.unsqueeze(0));
    };
    const std::vector<std::string> inputs{
        h, added("weight_ih", gates("weight_ih")), added("weight_hh", gates("weight_hh")),
        added("bias", at::cat({gates("bias_ih"), gates("bias_hh")}, 0))};

    std::vector<OnnxAttribute> attributes{{"hidden_size", hidden}};
    if (!is_lstm) attributes.push_back({"linear_before_reset", int64_t{1}});
    const std::string y = graph_.add_node(is_lstm ? "LSTM" : "GRU", inputs, attributes);
    h = graph_.add_node("Squeeze", {y, graph_.add_integers("direction", {1})});
  }
  return graph_.add_node("Transpose", {h}, {{"perm", Ints{1, 0, 2}}});
}

std::string OnnxLayers::attention(const std::string& x, const std::string& path, int64_t channels,
                                  int64_t heads, const std::string& mask) {
  const std::string packed = wide_linear(x, path + ".qkv");
  const auto parts =
      graph_.add_node_of({"query", "key", "value"}, "Split", {packed}, {{"axis", int64_t{2}}});
  const int64_t width = channels / heads;
  const std::string shape = graph_.add_integers("heads", {0, 0, heads, width});
  const auto in_heads = [&](const std::string& part, const Ints& perm) {
    const std::string split = graph_.add_node("Reshape", {part, shape});
    return graph_.add_node("Transpose", {split}, {{"perm", perm}});
  };
  const std::string q = in_heads(parts[0], {0, 2, 1, 3}), k = in_heads(parts[1], {0, 2, 3, 1}),
                    v = in_heads(parts[2], {0, 2, 1, 3});

  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const std::string scores = scaled(graph_.add_node("MatMul", {q, k}), scale);
  const std::string seen = graph_.add_node("Add", {scores, mask});
  const std::string shares = graph_.add_node("Softmax", {seen}, {{"axis", int64_t{-1}}});
  const std::string mixed = graph_.add_node("Transpose", {graph_.add_node("MatMul", {shares, v})},
                                            {{"perm", Ints{0, 2, 1, 3}}});
  const std::string joined =
      graph_.add_node("Reshape", {mixed, graph_.add_integers("channels", {0, 0, channels})});
  return wide_linear(joined, path + ".proj");
}

}  // namespace lathe
