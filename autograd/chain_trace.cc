#include "autograd/chain_trace.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/node.h"
#include "core/elementwise.h"
#include "core/kernels/chain_plan.h"
#include "core/mode.h"
#include "core/rows.h"

namespace lathe {
namespace {

/// The node of placeholder Variables that stand for the values of a chain. No gradient ever reaches
/// this node.
struct StandIn final : Node {
  StandIn() : Node({}) {}
  std::string name() const override { return "fused"; }
  GradList<at::Tensor> backward(const GradList<at::Tensor>&, const NeedsList&,
                                GradSlots&) override {
    return {};
  }
  GradList<Variable> backward(const GradList<Variable>&, const NeedsList&) override { return {}; }
};

bool is_chain_dtype(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; }

bool is_same_edge(const Edge& a, const Edge& b) { return a.node == b.node && a.output == b.output; }

/// Returns whether ATen can fill a tensor of the dtype with the number. ATen throws for a finite
/// number that is too large.
bool can_fill(double number, at::ScalarType dtype) {
  const double largest = dtype == at::kBFloat16
                             ? static_cast<double>(std::numeric_limits<c10::BFloat16>::max())
                             : static_cast<double>(std::numeric_limits<float>::max());
  return !std::isfinite(number) || std::abs(number) <= largest;
}

/// Returns how a contiguous tensor of shape `from` is broadcast to shape `to`. Returns nullopt if
/// that is impossible, or if the dims that are not broadcast are not adjacent.
std::optional<Chain::Input> layout_of(at::IntArrayRef from, at::IntArrayRef to) {
  if (from.size() > to.size()) return std::nullopt;
  const size_t offset = to.size() - from.size();
  const auto size_at = [&](size_t d) { return d < offset ? 1 : from[d - offset]; };

  Chain::Input layout{.inner = 1, .size = 1};
  bool ended = false, all = true;
  for (size_t d = to.size(); d-- > 0;) {
    if (to[d] == 1 && size_at(d) == 1) continue;
    if (size_at(d) == to[d]) {
      if (ended) return std::nullopt;
      layout.size *= to[d];
    } else if (size_at(d) == 1) {
      all = false;
      if (layout.size > 1)
        ended = true;
      else
        layout.inner *= to[d];
    } else {
      return std::nullopt;
    }
  }

  if (all) return Chain::Input{};
  if (layout.size == 1) layout.inner = 1;
  return layout;
}

ChainOp chain_op(detail::Comparison op) {
  switch (op) {
    case detail::Comparison::less: return ChainOp::less;
    case detail::Comparison::less_equal: return ChainOp::less_equal;
    case detail::Comparison::greater: return ChainOp::greater;
    case detail::Comparison::greater_equal: return ChainOp::greater_equal;
    case detail::Comparison::equal: return ChainOp::equal;
    default: return ChainOp::not_equal;
  }
}

}  // namespace

void detail::abandon_chain() { throw ChainAbandoned(); }

void detail::abandon_chain_if_used(std::span<const Variable> inputs) {
  for (const Variable& v : inputs) {
    if (v.defined() && mode().chain->has(v)) abandon_chain();
  }
}

at::Tensor detail::compare_in_chain(Comparison op, const Operand& a, const Operand& b) {
  return mode().chain->compare(chain_op(op), a, b);
}

ChainTrace::ChainTrace(at::IntArrayRef sizes) : grad_(mode().grad), sizes_(sizes.vec()) {}

bool ChainTrace::has_rows() const { return has_row_kernels(sizes_); }

Chain::Input ChainTrace::per_row_layout() const {
  const int64_t columns = sizes_.back();
  return {.inner = columns, .size = c10::multiply_integers(sizes_) / columns};
}

ChainTrace::ChainTrace(std::span<const Variable> inputs)
    : grad_(mode().grad),
      differentiable_(std::make_shared<StandIn>()),
      constant_(std::make_shared<StandIn>()) {
  constant_->frozen = true;

  for (const Variable& v : inputs) {
    if (!v.defined()) detail::abandon_chain();
    if (at::is_expandable_to(v.sizes(), sizes_)) continue;
    if (!at::is_expandable_to(sizes_, v.sizes())) detail::abandon_chain();
    sizes_ = v.sizes().vec();
  }
  if (sizes_.empty() || c10::multiply_integers(sizes_) == 0) detail::abandon_chain();

  for (const Variable& v : inputs) {
    const bool is_full = v.sizes() == at::IntArrayRef(sizes_) && v.data().is_floating_point();
    arguments_.push_back(is_full ? placeholder(add_input(v)) : v);
  }
}

std::optional<int> ChainTrace::value_of(const at::Tensor& t) const {
  for (size_t i = stand_ins_.size(); i-- > 0;) {
    if (stand_ins_[i].first.is_same(t)) return stand_ins_[i].second;
  }
  return std::nullopt;
}

bool ChainTrace::is_per_row(const at::Tensor& t, const Chain::Input& layout) const {
  if (!has_rows() || !t.is_floating_point() || !can_use_rows(calls_, calls_per_row_)) return false;
  const Chain::Input per_row = per_row_layout();
  return layout.inner == per_row.inner && layout.size == per_row.size;
}

/// Returns whether the result of an elementwise op has one element per row. Throws ChainAbandoned
/// if the result has neither that shape nor the chain's shape.
bool ChainTrace::gives_one_per_row(std::span<const Variable> inputs, const at::Tensor& mask) const {
  std::vector<int64_t> result;
  for (const Variable& v : inputs) result = at::infer_size(result, v.sizes());
  if (mask.defined()) result = at::infer_size(result, mask.sizes());
  if (result == sizes_) return false;
  if (!has_rows() || result != per_row_sizes(sizes_)) detail::abandon_chain();
  return true;
}

int ChainTrace::add_input(const Variable& v) {
  const at::Tensor& t = v.data();
  const auto layout = layout_of(t.sizes(), sizes_);
  const bool fits = is_chain_dtype(t.scalar_type()) || t.scalar_type() == at::kBool;
  if (!layout || !fits || !t.is_cpu() || !t.is_contiguous() || t.numel() == 0)
    detail::abandon_chain();

  for (const ChainInput& input : inputs_) {
    const bool same_edge = is_same_edge(input.variable.edge(), v.edge());
    if (input.variable.data().is_same(t) && same_edge) {
      if (t._version() != input.version) detail::abandon_chain();
      return input.value;
    }
    // Two tensors of one parameter, such as its float32 tensor and its working copy, can't both be
    // inputs: the engine adds all of their gradients to one sum, in an order that a chain would
    // change.
    if (v.edge() && same_edge) detail::abandon_chain();
  }
  const bool per_row = is_per_row(t, *layout);
  uses_rows_ = uses_rows_ || per_row;
  const int value = formula_.add_input(t.scalar_type(), grad_ && v.requires_grad(), per_row);
  inputs_.push_back({.variable = v, .layout = *layout, .value = value, .version = t._version()});
  return value;
}

int ChainTrace::operand(const Variable& v) {
  if (const auto value = value_of(v.data())) {
    if (!is_connected(v, *value)) detail::abandon_chain();
    return *value;
  }
  if (!is_chain_dtype(v.dtype())) detail::abandon_chain();
  return add_input(v);
}

int ChainTrace::mask(const at::Tensor& t) {
  if (const auto value = value_of(t)) return *value;
  if (t.scalar_type() != at::kBool) detail::abandon_chain();
  return add_input(Variable(t));
}

at::Tensor ChainTrace::stand_in(int value) {
  // Do not use at::empty, which a dry run replaces.
  at::Tensor t(at::detail::empty_meta(formula_.sizes_of(value, sizes_), formula_[value].dtype));
  stand_ins_.emplace_back(t, value);
  return t;
}

Variable ChainTrace::placeholder(int value) {
  return Variable(stand_in(value), Edge(formula_[value].needs_grad ? differentiable_ : constant_));
}

bool ChainTrace::is_connected(const Variable& v, int) const {
  return v.node() == differentiable_ || v.node() == constant_;
}

Variable ChainTrace::record(const ChainForm& form, const OpInfo& info,
                            std::span<const Variable> inputs) {
  const bool belongs_to_chain =
      (form.mask.defined() && value_of(form.mask)) ||
      std::any_of(inputs.begin(), inputs.end(), [&](const Variable& v) { return has(v); });
  if (!belongs_to_chain) {
    // An op of tensors outside of the chain runs immediately. If it shared an input with the chain,
    // the gradients of that input would be added in another order than without the chain.
    for (const Variable& v : inputs) {
      for (const ChainInput& input : inputs_) {
        if (v.edge() && is_same_edge(v.edge(), input.variable.edge())) detail::abandon_chain();
      }
    }
    return {};
  }
  if (mode().grad != grad_) detail::abandon_chain();
  return add(form, info, inputs);
}

/// Updates, for a new op, whether the chain uses rows and whether its ops call ATen's functions.
/// `one_per_row`: the new op's operands have one element per row. Throws ChainAbandoned if the op
/// needs complete rows and these are missing, or if a chain with both rows and such calls would not
/// be bitwise equal to ATen.
void ChainTrace::update_row_use(ChainOp op, bool one_per_row) {
  if (needs_rows(op) && (one_per_row || !has_rows())) detail::abandon_chain();
  const bool uses_rows = uses_rows_ || one_per_row || needs_rows(op),
             calls = calls_ || (calls_aten(op) && !one_per_row),
             calls_per_row = calls_per_row_ || (calls_aten(op) && one_per_row);
  if (uses_rows && !can_use_rows(calls, calls_per_row)) detail::abandon_chain();
  uses_rows_ = uses_rows;
  calls_ = calls;
  calls_per_row_ = calls_per_row;
}

/// Returns whether the chain may use rows. `calls` and `calls_per_row`: whether its ops call ATen's
/// functions on values of the chain's shape, and on values with one element per row.
bool ChainTrace::can_use_rows(bool calls, bool calls_per_row) const {
  return rows_split_alike(per_row_layout().size, sizes_.back(), calls, calls_per_row);
}

/// Throws ChainAbandoned if a value that is computed from operands a and b (-1: there is no b)
/// could have other bits in a chain than outside of it.
void ChainTrace::check_operands(const ChainForm& form, int a, int b, bool one_per_row) const {
  if (one_per_row && form.mask.defined()) detail::abandon_chain();  // masks have the full shape
  bool is_low = true;
  for (const int value : {a, b}) {
    if (value < 0) continue;
    const ChainValue& v = formula_[value];
    if (one_per_row && !v.per_row) detail::abandon_chain();
    // The kernels for rows support only float32.
    if (needs_rows(form.op) && v.dtype != at::kFloat) detail::abandon_chain();
    is_low = is_low && v.dtype == at::kBFloat16;
  }
  for (const int value : {a, b}) {
    // Abandon the chain if a computed bfloat16 operand has one element per row: the engine would
    // sum the operand's gradient along rows in ATen's order, and a chain can't sum in that order.
    if (value < 0 || one_per_row || !is_low) continue;
    const ChainValue& v = formula_[value];
    if (v.per_row && v.needs_grad && v.op != ChainOp::input) detail::abandon_chain();
  }
}

Variable ChainTrace::add(const ChainForm& form, const OpInfo& info,
                         std::span<const Variable> inputs) {
  // The result must have the dtype that ATen promotes to. In this promotion, a tensor without dims
  // has lower priority than one with dims.
  for (const Variable& v : inputs) {
    if (v.dtype() != inputs[0].dtype() && (v.dim() == 0 || form.op == ChainOp::select))
      detail::abandon_chain();
  }
  if (inputs[0].dim() == 0 && inputs.back().dtype() != inputs[0].dtype()) detail::abandon_chain();
  if (form.op == ChainOp::pow && form.number == 0) detail::abandon_chain();
  if (form.op == ChainOp::fill && !can_fill(form.number, inputs[0].dtype()))
    detail::abandon_chain();
  if (form.dtype && !is_chain_dtype(*form.dtype)) detail::abandon_chain();
  const ChainOp op = form.op == ChainOp::rsqrt && inputs[0].dtype() == at::kFloat
                         ? ChainOp::inverse_root
                         : with_kernel(form.op);
  const bool one_per_row = gives_one_per_row(inputs, form.mask);
  update_row_use(op, one_per_row);

  // `is_gelu` is true if ATen's gelu() computes the op.
  const bool is_gelu = op == ChainOp::gelu || op == ChainOp::gelu_exact;
  // A tile may have a single row, and ATen's gelu() of a tensor with one element may differ in bits
  // from gelu() of the same element in a longer tensor.
  if (is_gelu && one_per_row) detail::abandon_chain();

  const int a = operand(inputs[0]), b = inputs.size() > 1 ? operand(inputs[1]) : -1;
  check_operands(form, a, b, one_per_row);
  const int value = [&] {
    if (form.op == ChainOp::select) return formula_.add_select(mask(form.mask), a, b);
    if (form.op == ChainOp::fill) return formula_.add(form.op, mask(form.mask), a, form.number);
    if (form.dtype) return formula_.add_cast(a, *form.dtype);
    return formula_.add(op, a, b, form.number);
  }();

  const double share = one_per_row ? 1.0 / static_cast<double>(sizes_.back()) : 1;
  costs_.resize(formula_.values().size(), {0, 0});
  costs_[static_cast<size_t>(value)] = {info.each.forward * share, info.each.backward * share};
  return placeholder(value);
}

PerElement ChainTrace::cost() const {
  PerElement sum{0, 0};
  for (const PerElement& cost : costs_) {
    sum.forward += cost.forward;
    sum.backward += cost.backward;
  }
  return sum;
}

at::Tensor ChainTrace::compare(ChainOp op, const detail::Operand& a, const detail::Operand& b) {
  const auto is_mine = [&](const detail::Operand& o) {
    return o.variable.defined() && has(o.variable);
  };
  if (!is_mine(a) && !is_mine(b)) return {};
  // Chains do not support a number on the left, a tensor without dims, or a mask with one element
  // per row. All are rare.
  if (!a.variable.defined() || a.variable.dim() == 0) detail::abandon_chain();
  const Variable& other = b.variable.defined() ? b.variable : a.variable;
  if (gives_one_per_row(std::array{a.variable, other}, {})) detail::abandon_chain();
  if (!b.variable.defined()) return stand_in(formula_.add(op, operand(a.variable), -1, b.number));
  if (b.variable.dim() == 0) detail::abandon_chain();
  const int left = operand(a.variable), right = operand(b.variable);
  return stand_in(formula_.add(op, left, right));
}

int ChainTrace::result(const Variable& y) const {
  const auto value = y.defined() ? value_of(y.data()) : std::nullopt;
  if (!value || formula_[*value].op == ChainOp::input || formula_[*value].dtype == at::kBool)
    detail::abandon_chain();
  if (!is_connected(y, *value)) detail::abandon_chain();
  for (const auto& [tensor, of] : stand_ins_) {
    if (tensor._version() != 0) detail::abandon_chain();
  }
  for (const ChainInput& input : inputs_) {
    if (input.variable.data()._version() != input.version) detail::abandon_chain();
  }
  return *value;
}

}  // namespace lathe
