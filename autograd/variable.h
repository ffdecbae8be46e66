// Variable: a tensor and its place in the graph. A value-semantic handle: copies share both.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

namespace lathe {

struct Node;
struct Leaf;

/// Where a gradient goes: to output `output` of `node`, or nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  uint32_t output = 0;

  Edge() = default;
  Edge(std::shared_ptr<Node> node_, uint32_t output_ = 0) : node(std::move(node_)), output(output_) {}
  explicit operator bool() const { return node != nullptr; }
};

class Variable {
 public:
  Variable() = default;
  /// A constant: no gradient flows to it.
  explicit Variable(at::Tensor data) : data_(std::move(data)) {}
  /// What has the gradient that `edge` says.
  Variable(at::Tensor data, Edge edge) : data_(std::move(data)), edge_(std::move(edge)) {}
  /// A leaf whose gradient is kept: a parameter.
  static Variable parameter(at::Tensor data, std::string name = "");

  bool defined() const { return data_.defined(); }
  const at::Tensor& data() const { return data_; }
  at::IntArrayRef sizes() const { return data_.sizes(); }
  int64_t size(int64_t dim) const { return data_.size(dim); }
  int64_t dim() const { return data_.dim(); }
  int64_t numel() const { return data_.numel(); }
  at::ScalarType dtype() const { return data_.scalar_type(); }
  bool requires_grad() const { return static_cast<bool>(edge_); }
  const Edge& edge() const { return edge_; }
  const std::shared_ptr<Node>& node() const { return edge_.node; }
  /// The leaf behind a parameter; null for anything else.
  Leaf* as_leaf() const;
  /// The same; an error for anything else.
  Leaf& leaf() const;
  /// A parameter's accumulated gradient; undefined before the first backward.
  const at::Tensor& grad() const;
  /// The same data, cut off from the graph.
  Variable detach() const { return Variable(data_); }
  double item() const { return data_.item().toDouble(); }

  /// Called with the gradient that reaches this Variable, before it goes further; a defined result replaces it.
  void register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const;

 private:
  at::Tensor data_;
  Edge edge_;
};

Variable operator+(const Variable& a, const Variable& b);
Variable operator-(const Variable& a, const Variable& b);
Variable operator*(const Variable& a, const Variable& b);
Variable operator/(const Variable& a, const Variable& b);
Variable operator-(const Variable& a);
Variable operator+(const Variable& a, double b);
Variable operator-(const Variable& a, double b);
Variable operator*(const Variable& a, double b);
Variable operator/(const Variable& a, double b);
inline Variable operator+(double a, const Variable& b) { return b + a; }
inline Variable operator*(double a, const Variable& b) { return b * a; }
inline Variable operator-(double a, const Variable& b) { return -b + a; }

}  // namespace lathe
