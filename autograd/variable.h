// Defines Variable, a tensor and its position in the graph. A Variable is a handle: copies share
// both.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
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

/// Where a gradient goes: to output `output` of `node`, or nowhere if `node` is null.
struct Edge {
  std::shared_ptr<Node> node;
  uint32_t output = 0;

  Edge() = default;
  Edge(std::shared_ptr<Node> node_, uint32_t output_ = 0)
      : node(std::move(node_)), output(output_) {}
  explicit operator bool() const { return node != nullptr; }
};

/// A handle of a registered hook.
class HookHandle {
 public:
  HookHandle() = default;
  HookHandle(std::weak_ptr<Node> node, std::weak_ptr<void> hook)
      : node_(std::move(node)), hook_(std::move(hook)) {}
  /// Removes the hook, which then receives no further gradients. Does nothing if the hook no longer
  /// exists. Must not be called while a backward pass over the hook's graph runs on another thread.
  void remove();

 private:
  std::weak_ptr<Node> node_;
  std::weak_ptr<void> hook_;
};

/// A range of positions in a dimension, like Python's start:end:step. Negative positions count from
/// the end.
struct Slice {
  std::optional<int64_t> start{}, end{};
  int64_t step = 1;
};
/// An index of a dimension: a position, a range, a mask (bool; a mask with n dims indexes n dims)
/// or several positions (int64).
using Index = std::variant<int64_t, Slice, at::Tensor>;

namespace detail {

/// Whether this thread has recorded ops that have not run yet (autograd/deferred.h).
inline constinit thread_local bool has_deferred_ops = false;
/// Runs the recorded ops.
void compute_deferred();

}  // namespace detail

// These functions of autograd/ops.h are declared here for the operators below.
class Variable;
Variable neg(const Variable& x);
Variable add_scalar(const Variable& x, double c);
Variable mul_scalar(const Variable& x, double c);
Variable pow(const Variable& x, double exponent);

/// A tensor, and its position in the graph that computed it, if any. A Variable is a handle: copies
/// share both.
class Variable {
 public:
  Variable() = default;
  /// Creates a constant, to which no gradient flows. A tensor converts to a constant where a
  /// Variable is expected: net(tensor).
  Variable(at::Tensor data) : data_(std::move(data)) {}
  /// Creates a Variable whose gradient goes to `edge`.
  Variable(at::Tensor data, Edge edge) : data_(std::move(data)), edge_(std::move(edge)) {}
  Variable(const Variable&) = default;
  Variable(Variable&&) = default;
  // Temporaries cannot be assigned to: x[0] = y would not change x.
  Variable& operator=(const Variable&) & = default;
  Variable& operator=(Variable&&) & = default;
  /// Creates a parameter: a leaf whose gradient is kept.
  static Variable parameter(at::Tensor data, std::string name = "");

  bool defined() const { return data_.defined(); }
  /// Returns the tensor, with its values: runs deferred ops first.
  const at::Tensor& data() const {
    if (detail::has_deferred_ops) [[unlikely]]
      detail::compute_deferred();
    return data_;
  }
  // These accessors throw if the Variable is undefined, except numel(), which returns 0.
  at::IntArrayRef sizes() const { return checked().sizes(); }
  int64_t size(int64_t dim) const { return checked().size(dim); }
  int64_t dim() const { return checked().dim(); }
  int64_t numel() const { return data_.numel(); }
  at::ScalarType dtype() const { return checked().scalar_type(); }
  double item() const {
    checked();
    return data().item().toDouble();
  }
  /// Returns the same data, detached from the graph.
  Variable detach() const { return Variable(data_); }

  /// Returns whether a gradient flows to this Variable: it is a parameter that is not frozen, or it
  /// was computed from such a parameter.
  bool requires_grad() const;
  /// Makes a parameter trainable (true) or freezes it (false), for all its handles. Freezing drops
  /// the gradient. With true, a constant becomes a parameter, but other handles of the constant
  /// stay constants. Throws for the result of an op: detach() it first.
  Variable& requires_grad_(bool on = true) &;
  /// Applies requires_grad_() to a temporary: `randn({2, 3}, seed).requires_grad_()`.
  Variable requires_grad_(bool on = true) && { return std::move(requires_grad_(on)); }
  /// Returns the edge along which this Variable's gradient flows. The edge has no node unless
  /// requires_grad() is true.
  const Edge& edge() const;
  /// Returns the node of the op that made this Variable, or the leaf of a parameter; null for a
  /// constant.
  const std::shared_ptr<Node>& node() const { return edge_.node; }
  /// Returns the leaf of a parameter, frozen or not. Returns null if this Variable is not a
  /// parameter.
  Leaf* as_leaf() const;
  /// Returns the leaf of a parameter. Throws if this Variable is not a parameter.
  Leaf& leaf() const;
  /// Returns a parameter's accumulated gradient, which is undefined before the first backward.
  /// Throws if this Variable is not a parameter.
  const at::Tensor& grad() const;
  /// Calls lathe::backward() (autograd/engine.h) with this Variable as the root.
  void backward(const at::Tensor& dy = {}, bool retain = false) const;

  /// Registers a hook that is called with the gradient that reaches this Variable, before the
  /// gradient flows further. If the hook returns a defined tensor, this tensor replaces the
  /// gradient.
  HookHandle register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const;
  /// Registers a hook that is called each time a backward pass has added to a parameter's grad.
  HookHandle register_post_accumulate_grad_hook(std::function<void(Leaf&)> hook) const;

  /// Indexes dim 0. Positions and ranges return views; masks and tensors return copies. Gradients
  /// flow back to the selected elements.
  Variable operator[](int64_t position) const { return index({position}); }
  Variable operator[](const Slice& range) const { return index({range}); }
  Variable operator[](const at::Tensor& mask_or_places) const { return index({mask_or_places}); }
  /// Indexes the first dims, with one index for each dim. If several indices are tensors, these are
  /// broadcast with each other and select elements together, as in NumPy.
  Variable index(const std::vector<Index>& indices) const;

  // Arithmetic with numbers. These operators are friends, so that they are found for Variables
  // only. For tensors, ATen's operators must remain the only candidates.
  friend Variable operator+(const Variable& a, double b) { return add_scalar(a, b); }
  friend Variable operator-(const Variable& a, double b) { return add_scalar(a, -b); }
  friend Variable operator*(const Variable& a, double b) { return mul_scalar(a, b); }
  friend Variable operator/(const Variable& a, double b) { return mul_scalar(a, 1 / b); }
  friend Variable operator+(double a, const Variable& b) { return add_scalar(b, a); }
  friend Variable operator-(double a, const Variable& b) { return add_scalar(neg(b), a); }
  friend Variable operator*(double a, const Variable& b) { return mul_scalar(b, a); }
  friend Variable operator/(double a, const Variable& b) { return mul_scalar(pow(b, -1), a); }
  // With an integer, Variables of integers and bools stay integers, as in PyTorch.
  template <std::integral N>
  friend Variable operator+(const Variable& a, N b) {
    return a.is_integral() ? a.plus_whole(b) : a + static_cast<double>(b);
  }
  template <std::integral N>
  friend Variable operator-(const Variable& a, N b) {
    return a.is_integral() ? a.plus_whole(-static_cast<int64_t>(b)) : a - static_cast<double>(b);
  }
  template <std::integral N>
  friend Variable operator*(const Variable& a, N b) {
    return a.is_integral() ? a.times_whole(b) : a * static_cast<double>(b);
  }
  template <std::integral N>
  friend Variable operator+(N a, const Variable& b) {
    return b + a;
  }
  template <std::integral N>
  friend Variable operator-(N a, const Variable& b) {
    return b.is_integral() ? b.times_whole(-1).plus_whole(a) : static_cast<double>(a) - b;
  }
  template <std::integral N>
  friend Variable operator*(N a, const Variable& b) {
    return b * a;
  }

 private:
  /// Returns whether the elements are integers or bools.
  bool is_integral() const { return c10::isIntegralType(dtype(), /*includeBool=*/true); }
  /// Return the sum with a number and the product with a number, for elements that are integers or
  /// bools. No graph is recorded.
  Variable plus_whole(int64_t number) const;
  Variable times_whole(int64_t number) const;

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

/// In arithmetic with a Variable, a tensor is a constant.
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

/// Throws unless the operand v holds a tensor.
void check_operand(const Variable& v);

/// An operand of an arithmetic operator or a comparison: a Variable, a tensor or a number.
class Operand {
 public:
  // Throws if `v` is undefined.
  Operand(const Variable& v) : variable(v) { check_operand(v); }
  Operand(const at::Tensor& t) : Operand(Variable(t)) {}
  template <class N>
    requires std::is_arithmetic_v<N>
  Operand(N n) : number(static_cast<double>(n)) {
    if constexpr (std::integral<N>) whole = static_cast<int64_t>(n);
  }
  /// Returns the number as a scalar that is an integer if the number was given as an integer.
  at::Scalar scalar() const { return whole ? at::Scalar(*whole) : at::Scalar(number); }

  Variable variable;  // undefined if the operand is a number
  double number = 0;
  std::optional<int64_t> whole{};  // the number, if it is an integer
};
/// Whether an operator of this header applies to A and B: at least one of them is a Variable.
template <class A, class B>
concept OperandPair = (std::same_as<A, Variable> || std::same_as<B, Variable>) &&
                      std::convertible_to<A, Operand> && std::convertible_to<B, Operand>;

void assign(Arithmetic op, Variable& a, const Operand& b, bool is_temporary);
at::Tensor compare(Comparison op, const Operand& a, const Operand& b);

}  // namespace detail

/// Adds b to `a`. If a graph is recorded, `a` becomes a new Variable a + b, and other handles stay
/// unchanged. In this case, throws if `a` is a parameter or a part such as x[0]. If no graph is
/// recorded (for constants, or under NoGrad), the values of `a` are changed in place, as by ATen's
/// in-place functions: every handle and view of `a` has the new values. If a graph saved the
/// previous values, its backward throws.
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
// Defines the same operators for temporaries such as x[0]. V is deduced, so that a tensor, which
// converts to a Variable, keeps ATen's operators.
template <std::same_as<Variable> V, class B>
void operator+=(V&& a, const B& b) {
  detail::assign(detail::Arithmetic::add, a, b, true);
}
template <std::same_as<Variable> V, class B>
void operator-=(V&& a, const B& b) {
  detail::assign(detail::Arithmetic::sub, a, b, true);
}
template <std::same_as<Variable> V, class B>
void operator*=(V&& a, const B& b) {
  detail::assign(detail::Arithmetic::mul, a, b, true);
}
template <std::same_as<Variable> V, class B>
void operator/=(V&& a, const B& b) {
  detail::assign(detail::Arithmetic::div, a, b, true);
}

/// Compare values and return a bool tensor. No gradient flows through comparisons.
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator<(const A& a, const B& b) {
  return detail::compare(detail::Comparison::less, a, b);
}
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator<=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::less_equal, a, b);
}
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator>(const A& a, const B& b) {
  return detail::compare(detail::Comparison::greater, a, b);
}
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator>=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::greater_equal, a, b);
}
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator==(const A& a, const B& b) {
  return detail::compare(detail::Comparison::equal, a, b);
}
template <class A, class B>
  requires detail::OperandPair<A, B>
at::Tensor operator!=(const A& a, const B& b) {
  return detail::compare(detail::Comparison::not_equal, a, b);
}

/// Prints the values of x in nested brackets, then its dtype, its shape, and the op that made x or
/// the parameter's name: `[[1, 2],\n [3, 4]] float32[2,2] from add`. If x has more than 1000
/// values, only the first three and the last three along each dim are printed.
std::ostream& operator<<(std::ostream& out, const Variable& x);

}  // namespace lathe
