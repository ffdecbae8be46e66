// The layers of Lathe's models as operators of ONNX. Shapes: B batch, T time, C channels, V
// vocabulary.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/models/model.h"
#include "nn/module.h"
#include "train/formats/onnx_file.h"

namespace lathe {

/// A graph and the weights of a model, which are added to it where a layer needs them. Each
/// function adds a layer and returns the name of its result. `path`: of the layer in the model.
class OnnxLayers {
 public:
  /// Takes the parameters and buffers of the model, on the CPU. `graph` must outlive this object,
  /// which must outlive the graph's write().
  OnnxLayers(OnnxGraph& graph, const StateDict& state);

  OnnxGraph& graph() { return graph_; }
  /// Returns whether the model has a tensor of that path.
  bool has(const std::string& path) const { return state_.contains(path); }
  /// Returns the tensor of that path in float32.
  const at::Tensor& tensor(const std::string& path) const { return state_.at(path); }
  /// Adds a tensor of the model as a constant, unless it was added before, and returns its name.
  /// Returns "" where the model has no such tensor.
  std::string weight(const std::string& path);
  /// Adds a tensor that is computed from the model's.
  std::string constant(const std::string& name, const at::Tensor& t);

  /// Adds a Linear for a matrix x [B, C].
  std::string linear(const std::string& x, const std::string& path);
  /// Adds a Linear for the last dim of x [..., C].
  std::string wide_linear(const std::string& x, const std::string& path);
  /// Adds the matrix product x W^T with a weight W [V, C].
  std::string product(const std::string& x, const std::string& weight_path);
  /// Adds a BatchNorm1d or BatchNorm2d that uses its running statistics.
  std::string batch_norm(const std::string& x, const std::string& path);
  /// Adds a LayerNorm.
  std::string layer_norm(const std::string& x, const std::string& path);
  /// Adds a Conv2d with the same stride and padding for both dims, and without a bias.
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

/// A kind of model that ONNX files are written for.
struct OnnxKind {
  std::string name;
  /// Adds the model's layers. `x`: float32 [B, ...] of ModelSizes::input, or ids int64 [B, T].
  /// Returns the name of the outputs [B, outputs], or logits [B, T, V].
  std::string (*add)(OnnxLayers& layers, const AnyConfig& config, const ModelSizes& sizes,
                     const std::string& x);
};
/// Returns the kinds that ONNX files are written for.
const std::vector<OnnxKind>& onnx_kinds();

}  // namespace lathe
