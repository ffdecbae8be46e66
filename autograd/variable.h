// Variable: a tensor and its place in the graph. A handle: copies share both.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lathe {

struct Node;
struct Leaf;

/// Where a gradient goes: to output `output` of `node`, or nowhere.
struct Edge {
  std::shared_ptr<Node> node;
  uint32_t output = 0;

  Edge() = default;
  Edge(std::shared_ptr<Node> node_, uint32_t output_ = 0)
      : node(std::move(node_)), output(output_) {}
  explicit operator bool() const { return node != nullptr; }
};

/// A hook that was registered.
class HookHandle {
 public:
  HookHandle() = default;
  HookHandle(std::weak_ptr<Node> node, std::weak_ptr<void> hook)
      : node_(std::move(node)), hook_(std::move(hook)) {}
  /// It is called no more, from the next gradient on. Nothing where it is gone already. Not while a
  /// backward pass over its graph runs on another thread.
  void remove();

 private:
  std::weak_ptr<Node> node_;
  std::weak_ptr<void> hook_;
};

/// Places of a dimension, Python's start:end:step; negative ones count from the end.
struct Slice {
  std::optional<int64_t> start{}, end{};
  int64_t step = 1;
};
/// What a dimension is indexed by: a place, a range, a mask (bool, over as many dims as it has) or
/// places (int64).
using Index = std::variant<int64_t, Slice, at::Tensor>;

/// A tensor, and its place in the graph of what it was made of, if any. A handle: copies share
/// both.
class Variable {
 public:
  Variable() = default;
  /// A constant: no gradient flows to it.
  explicit Variable(at::Tensor data) : data_(std::move(data)) {}
  /// What has the gradient that `edge` says.
  Variable(at::Tensor data, Edge edge) : data_(std::move(data)), edge_(std::move(edge)) {}
  Variable(const Variable&) = default;
  Variable(Variable&&) = default;
  // Not to temporaries: x[0] = y would say what it does not do.
  Variable& operator=(const Variable&) & = default;
  Variable& operator=(Variable&&) & = default;
  /// A leaf whose gradient is kept: a parameter.
  static Variable parameter(at::Tensor data, std::string name = "");

  bool defined() const { return data_.defined(); }
  const at::Tensor& data() const { return data_; }
  // Each of these throws where the Variable is undefined, but for numel(), which is then 0.
  at::IntArrayRef sizes() const { return checked().sizes(); }
  int64_t size(int64_t dim) const { return checked().size(dim); }
  int64_t dim() const { return checked().dim(); }
  int64_t numel() const { return data_.numel(); }
  at::ScalarType dtype() const { return checked().scalar_type(); }
  double item() const { return checked().item().toDouble(); }
  /// The same data, cut off from the graph.
  Variable detach() const { return Variable(data_); }

  /// Whether a gradient flows to it: it is a parameter that is not frozen, or was made of one.
  bool requires_grad() const;
  /// Freezes a parameter (false), which drops its gradient, or lets it be trained again; for all
  /// its handles. True makes this handle of a constant a parameter. An error for what an op made:
  /// detach() it.
  Variable& requires_grad_(bool on = true) &;
  /// The same of a temporary: `randn({2, 3}, seed).requires_grad_()`.
  Variable requires_grad_(bool on = true) && { return std::move(requires_grad_(on)); }
  /// Where its gradient goes; nowhere unless it requires_grad().
  const Edge& edge() const;
  /// What made it; null for a constant.
  const std::shared_ptr<Node>& node() const { return edge_.node; }
  /// The leaf behind a parameter, frozen or not; null for anything else.
  Leaf* as_leaf() const;
  /// The same; an error for anything else.
  Leaf& leaf() const;
  /// A parameter's accumulated gradient; undefined before the first backward.
  const at::Tensor& grad() const;
  /// As the function of that name (autograd/engine.h).
  void backward(const at::Tensor& dy = {}, bool retain = false) const;

  /// Called with the gradient that reaches this Variable, before it goes further; a defined result
  /// replaces it.
  HookHandle register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const;
  /// Called each time a backward pass has added to a parameter's grad.
  HookHandle register_post_accumulate_grad_hook(std::function<void(Leaf&)> hook) const;

  /// Indexes dim 0. Places and ranges give views, masks and tensors copies. Gradients flow back to
  /// where values came from.
  Variable operator[](int64_t place) const { return index({place}); }
  Variable operator[](const Slice& range) const { return index({range}); }
  Variable operator[](const at::Tensor& mask_or_places) const { return index({mask_or_places}); }
  /// The same of the first dims, one for each; several tensors are broadcast and taken together, as
  /// in NumPy.
  Variable index(const std::vector<Index>& indices) const;

 private:
  const at::Tensor& checked() const {
    if (!data_.defined()) [[unlikely]]
      fail_undefined();
    return data_;
  }
  [[noreturn]] static void fail_undefined();

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
Variable operator/(double a, const Variable& b);

/// A tensor beside a Variable is a constant.
inline Variable operator+(const Variable& a, const at::Tensor& b) { return a + Variable(b); }
inline Variable operator-(const Variable& a, const at::Tensor& b) { return a - Variable(b); }
inline Variable operator*(const Variable& a, const at::Tensor& b) { return a * Variable(b); }
inline Variable operator/(const Variable& a, const at::Tensor& b) { return a / Variable(b); }
inline Variable operator+(const at::Tensor& a, const Variable& b) { return Variable(a) + b; }
inline Variable operator-(const at::Tensor& a, const Variable& b) { return Variable(a) - b; }
inline Variable operator*(const at::Tensor& a, const Variable& b) { return Variable(a) * b; }
inline Variable operator/(const at::Tensor& a, const Variable& b) { return Variable(a) / b; }

namespace detail {

enum class Arithmetic : uint8_t { add, sub, mul, div };
enum class Comparison : uint8_t { less, less_equal, greater, greater_equal, equal, not_equal };

/// What stands beside a Variable.
class Operand {
 public:
  // An undefined one throws here.
  Operand(const Variable& v) : variable(v) { (void)v.sizes(); }
  Operand(const at::Tensor& t) : Operand(Variable(t)) {}
  template <class N>
    requires std::is_arithmetic_v<N>
  Operand(N n) : number(static_cast<double>(n)) {}

  Variable variable;  // undefined: the number
  double number = 0;
};
template <class A, class B>
concept Beside = (std::same_as<A, Variable> || std::same_as<B, Variable>) &&
                 std::convertible_to<A, Operand> && std::convertible_to<B, Operand>;

void assign(Arithmetic op, Variable& a, const Operand& b, bool is_temporary);
at::Tensor compare(Comparison op, const Operand& a, const Operand& b);

}  // namespace detail

/// a += b. Where a graph is recorded of it, a becomes a new Variable, a + b, and other handles stay
/// what they were; an error for a parameter, and for a part such as x[0]. Elsewhere (constants;
/// anything under NoGrad) a's values change in place, for every handle and view of them, as ATen's
/// in-place functions do; a graph that has saved them notices, and its backward is an error.
template <class A>
Variable& operator+=(Variable& a, const A& b) {
  detail::assign(detail::Arithmetic::add, a, b, false);
  return a;
}
template <class A>
Variable& operator-=(Variable& a, const A& b) {
  detail::assign(detail::Arithmetic::sub, a, b, false);
  return a;
}
template <class A>
Variable& operator*=(Variable& a, const A& b) {
  detail::assign(detail::Arithmetic::mul, a, b, false);
  return a;
}
template <class A>
Variable& operator/=(Variable& a, const A& b) {
  detail::assign(detail::Arithmetic::div, a, b, false);
  return a;
}
template <class A>
void operator+=(Variable&& a, const A& b) {
  detail::assign(detail::Arithmetic::add, a, b, true);
}
template <class A>
void operator-=(Variable&& a, const A& b) {
  detail::assign(detail::Arithmetic::sub, a, b, true);
}
template <class A>
void operator*=(Variable&& a, const A& b) {
  detail::assign(detail::Arithmetic::mul, a, b, true);
}
template <class A>
void operator/=(Variable&& a, const A& b) {
  detail::assign(detail::Arithmetic::div, a, b, true);
}

/// Comparisons of values give a bool tensor; no gradient flows through them.
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator<(const A& a, const B& b) {
  return detail::compare(detail::Comparison::less, a, b);
}
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator<=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::less_equal, a, b);
}
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator>(const A& a, const B& b) {
  return detail::compare(detail::Comparison::greater, a, b);
}
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator>=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::greater_equal, a, b);
}
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator==(const A& a, const B& b) {
  return detail::compare(detail::Comparison::equal, a, b);
}
template <class A, class B>
  requires detail::Beside<A, B>
at::Tensor operator!=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::not_equal, a, b);
}

/// The values, nested in brackets (of more than 1000 the first and last three along each dim), then
/// dtype, shape, and the op that made it or the parameter's name: `[[1, 2],\n [3, 4]] float32[2,2]
/// from add`.
std::ostream& operator<<(std::ostream& out, const Variable& x);

}  // namespace lathe
