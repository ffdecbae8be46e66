// Variable: a tensor and the node that made it. A value-semantic handle: copies share both.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lathe {

struct Node;
struct Leaf;

class Variable {
 public:
  Variable() = default;
  /// A constant: no gradient flows to it.
  explicit Variable(at::Tensor data) : data_(std::move(data)) {}
  /// An output of `node`, whose gradient goes there.
  Variable(at::Tensor data, std::shared_ptr<Node> node) : data_(std::move(data)), node_(std::move(node)) {}
  /// A leaf whose gradient is kept: a parameter.
  static Variable parameter(at::Tensor data, std::string name = "");

  bool defined() const { return data_.defined(); }
  const at::Tensor& data() const { return data_; }
  at::IntArrayRef sizes() const { return data_.sizes(); }
  int64_t size(int64_t dim) const { return data_.size(dim); }
  int64_t dim() const { return data_.dim(); }
  int64_t numel() const { return data_.numel(); }
  at::ScalarType dtype() const { return data_.scalar_type(); }
  bool requires_grad() const { return node_ != nullptr; }
  const std::shared_ptr<Node>& node() const { return node_; }
  /// The leaf behind a parameter; an error for anything else.
  Leaf& leaf() const;
  /// A parameter's accumulated gradient; undefined before the first backward.
  const at::Tensor& grad() const;
  /// The same data, cut off from the graph.
  Variable detach() const { return Variable(data_); }
  double item() const { return data_.item().toDouble(); }

  /// Called with the gradient that reaches this Variable, before it goes further; a defined result replaces it.
  void register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const;

  // at::Tensor's names, so that one backward formula serves tensors and, for second derivatives, Variables.
  Variable exp() const;
  Variable tanh() const;
  Variable erf() const;
  Variable pow(double exponent) const;
  Variable sum(at::OptionalIntArrayRef dims = std::nullopt, bool keepdim = false) const;
  Variable reshape(at::IntArrayRef sizes) const;
  Variable expand(at::IntArrayRef sizes) const;
  Variable transpose(int64_t a, int64_t b) const;
  Variable permute(at::IntArrayRef dims) const;
  Variable slice(int64_t dim, int64_t start, int64_t end, int64_t step = 1) const;
  Variable triu(int64_t diagonal = 0) const;
  Variable matmul(const Variable& other) const;
  Variable to(at::ScalarType dtype) const;
  Variable unsqueeze(int64_t dim) const;

 private:
  at::Tensor data_;
  std::shared_ptr<Node> node_;
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
