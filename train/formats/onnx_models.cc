// Defines the model kinds that can be exported as ONNX.
#include <limits>

#include "nn/models/convnet.h"
#include "nn/models/gpt.h"
#include "nn/models/mlp.h"
#include "nn/models/rnn.h"
#include "train/formats/onnx_layers.h"

namespace lathe {
namespace {

std::string add_mlp(OnnxLayers& layers, const AnyConfig& any, const ModelSizes& /*sizes*/,
                    const std::string& x) {
  const auto& config = any.as<MLPConfig>();
  std::string h = layers.graph().add_node("Flatten", {x}, {{"axis", int64_t{1}}});
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string path = str("layers.", i);
    h = layers.linear(h, path + ".linear");
    if (config.norm == "layer") h = layers.layer_norm(h, path + ".norm");
    if (config.norm == "batch") h = layers.batch_norm(h, path + ".norm");
    h = layers.activation(h, config.activation);
  }
  return layers.linear(h, "head");
}

std::string add_convnet(OnnxLayers& layers, const AnyConfig& any, const ModelSizes& sizes,
                        const std::string& x) {
  const auto& config = any.as<ConvNetConfig>();
  OnnxGraph& graph = layers.graph();
  const auto relu = [&](const std::string& y) { return layers.activation(y, "relu"); };
  // Images [H, W] have one channel.
  const bool is_flat = sizes.input.size() == 2;
  const std::string images =
      is_flat ? graph.add_node("Unsqueeze", {x, graph.add_integers("channel", {1})}) : x;

  std::string h = relu(layers.batch_norm(layers.conv(images, "stem", 1, 1), "stem_norm"));
  for (int64_t i = 0; i < config.n_stage * config.n_block; ++i) {
    const std::string path = str("blocks.", i);
    const int64_t stride = i > 0 && i % config.n_block == 0 ? 2 : 1;
    std::string branch = layers.conv(h, path + ".conv1", stride, 1);
    branch = layers.conv(relu(layers.batch_norm(branch, path + ".norm1")), path + ".conv2", 1, 1);
    branch = layers.batch_norm(branch, path + ".norm2");
    if (layers.has(path + ".shortcut.conv.weight"))
      h = layers.batch_norm(layers.conv(h, path + ".shortcut.conv", stride, 0),
                            path + ".shortcut.norm");
    h = relu(graph.add_node("Add", {branch, h}));
  }
  const std::string pooled = graph.add_node("GlobalAveragePool", {h});
  return layers.linear(graph.add_node("Flatten", {pooled}, {{"axis", int64_t{1}}}), "head");
}

std::string head_path(bool tied) { return tied ? "tokens.weight" : "head.weight"; }

std::string add_rnn(OnnxLayers& layers, const AnyConfig& any, const ModelSizes& /*sizes*/,
                    const std::string& ids) {
  const auto& config = any.as<RNNConfig>();
  const std::string x = layers.graph().add_node("Gather", {layers.weight("tokens.weight"), ids});
  const std::string h = layers.recurrent(x, "layers", config.cell, config.n_layer, config.n_hidden);
  return layers.product(h, head_path(config.tie_weights));
}

std::string add_gpt(OnnxLayers& layers, const AnyConfig& any, const ModelSizes& /*sizes*/,
                    const std::string& ids) {
  const auto& config = any.as<GPTConfig>();
  OnnxGraph& graph = layers.graph();
  const std::string time =
      graph.add_node("Gather", {graph.add_node("Shape", {ids}), graph.add_integers("second", {1})});
  const std::string zero = graph.add_integers("zero", {0});
  const std::string positions =
      graph.add_node("Slice", {layers.weight("positions.weight"), zero, time});

  // The causal mask [T, T]: minus infinity above the diagonal.
  const std::string never =
      graph.add_numbers("never", OnnxType::f32, {-std::numeric_limits<double>::infinity()}, {});
  const std::string square = graph.add_node("Concat", {time, time}, {{"axis", int64_t{0}}});
  const std::string mask = graph.add_node(
      "Trilu", {graph.add_node("Expand", {never, square}), graph.add_integers("one", {1}, {})});

  const std::string tokens = graph.add_node("Gather", {layers.weight("tokens.weight"), ids});
  std::string h = graph.add_node("Add", {tokens, positions});
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string path = str("blocks.", i);
    const std::string seen = layers.attention(layers.layer_norm(h, path + ".norm1"), path + ".attn",
                                              config.n_embd, config.n_head, mask);
    h = graph.add_node("Add", {h, seen});
    const std::string up =
        layers.wide_linear(layers.layer_norm(h, path + ".norm2"), path + ".mlp.up");
    h = graph.add_node("Add",
                       {h, layers.wide_linear(layers.activation(up, "gelu"), path + ".mlp.down")});
  }
  return layers.product(layers.layer_norm(h, "norm"), head_path(config.tie_weights));
}

}  // namespace

const std::vector<OnnxKind>& onnx_kinds() {
  static const std::vector<OnnxKind> kinds{
      {"mlp", add_mlp}, {"convnet", add_convnet}, {"rnn", add_rnn}, {"gpt", add_gpt}};
  return kinds;
}

}  // namespace lathe
