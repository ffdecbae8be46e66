// Declares the layers of Lathe's models as operators of ONNX. Shapes: B batch, T time, C channels,
// V vocabulary.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/models/model.h"
#include "nn/module.h"
#include "train/formats/onnx_file.h"

namespace lathe {

/// Adds the layers of a model to a graph. A weight is added as a constant when a layer first needs
/// it. Each function for a layer takes the name `x` of the layer's input and the layer's path in
/// the model, and returns the name of the layer's result.
class OnnxLayers {
 public:
  /// `state` holds the parameters and buffers of the model, on the CPU. `graph` must outlive this
  /// object, and this object must exist until graph.write() has returned.
  OnnxLayers(OnnxGraph& graph, const StateDict& state);

  OnnxGraph& graph() { return graph_; }
  /// Returns whether the model has a tensor with this path.
  bool has(const std::string& path) const { return state_.contains(path); }
  /// Returns the tensor with this path, in float32.
  const at::Tensor& tensor(const std::string& path) const { return state_.at(path); }
  /// Adds a tensor of the model as a constant, unless it was added before, and returns its name.
  /// Returns "" if the model has no such tensor.
  std::string weight(const std::string& path);
  /// Adds a constant with values that the caller computed, and returns its name.
  std::string constant(const std::string& name, const at::Tensor& t);

  /// Adds a Linear that is applied to a matrix x [B, C].
  std::string linear(const std::string& x, const std::string& path);
  /// Adds a Linear that is applied to the last dimension of x [..., C].
  std::string wide_linear(const std::string& x, const std::string& path);
  /// Adds the matrix product x W^T, where the weight W is [V, C].
  std::string product(const std::string& x, const std::string& weight_path);
  /// Adds a BatchNorm1d or BatchNorm2d that uses its running statistics.
  std::string batch_norm(const std::string& x, const std::string& path);
  /// Adds a LayerNorm.
  std::string layer_norm(const std::string& x, const std::string& path);
  /// Adds a Conv2d with the same stride and padding in both dimensions, and without a bias.
  std::string conv(const std::string& x, const std::string& path, int64_t stride, int64_t padding);
  /// Adds an activation: "relu", "gelu" (in its tanh form), "silu" or "tanh".
  std::string activation(const std::string& x, const std::string& name);
  /// Adds an LSTM or a GRU (`cell`: "lstm", "gru") of `n_layer` layers in one direction: x
  /// [B, T, C] -> [B, T, hidden].
  std::string recurrent(const std::string& x, const std::string& path, const std::string& cell,
                        int64_t n_layer, int64_t hidden);
  /// Adds a CausalSelfAttention: x [B, T, C] -> [B, T, C]. `mask` [T, T] is added to the scores.
  std::string attention(const std::string& x, const std::string& path, int64_t channels,
                        int64_t heads, const std::string& mask);

 private:
  std::string scaled(const std::string& x, double factor);

  OnnxGraph& graph_;
  StateDict state_;
  std::vector<at::Tensor> held_;
  std::map<std::string, std::string> added_;
};

/// Describes a model kind that can be exported as ONNX.
struct OnnxKind {
  std::string name;
  /// Adds the model's layers. `x` names the input: float32 [B, ...] with the sizes of
  /// ModelSizes::input, or token ids int64 [B, T]. Returns the name of the outputs [B, outputs], or
  /// of the logits [B, T, V].
  std::string (*add)(OnnxLayers& layers, const AnyConfig& config, const ModelSizes& sizes,
                     const std::string& x);
};
/// Returns the model kinds that can be exported as ONNX.
const std::vector<OnnxKind>& onnx_kinds();

}  // namespace lathe
