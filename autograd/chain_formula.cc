#include "autograd/chain_formula.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <numbers>

#include "core/elementwise.h"
#include "core/error.h"
#include "core/rows.h"
#include "core/sum.h"

namespace lathe {
namespace {

bool is_comparison(ChainOp op) { return op >= ChainOp::less && op <= ChainOp::not_equal; }

ChainType chain_type(at::ScalarType dtype) {
  if (dtype == at::kBool) return ChainType::mask;
  return dtype == at::kBFloat16 ? ChainType::bf16 : ChainType::f32;
}

/// Returns an op's scalar operand as ATen uses it: rounded to bfloat16 if `dtype` is bfloat16,
/// except for mul, clamp and pow, which use it in float32.
double number_for(ChainOp op, double number, at::ScalarType dtype) {
  if (dtype != at::kBFloat16 || op == ChainOp::mul || op == ChainOp::clamp || op == ChainOp::pow)
    return number;
  return static_cast<double>(c10::BFloat16(static_cast<float>(number)));
}

/// Returns the result of the op of `v` for operands a, b and c. `sizes` is the formula's shape.
at::Tensor result_by_aten(const ChainValue& v, const at::Tensor& a, const at::Tensor& b,
                          const at::Tensor& c, at::IntArrayRef sizes) {
  const at::Scalar s = v.number;
  const bool has_b = b.defined();
  switch (v.op) {
    case ChainOp::copy: return a.to(v.dtype);
    case ChainOp::neg: return a.neg();
    case ChainOp::reciprocal: return a.reciprocal();
    case ChainOp::relu: return a.relu();
    case ChainOp::clamp: return a.clamp(-s, s);
    case ChainOp::add: return has_b ? a.add(b) : a.add(s);
    case ChainOp::sub: return has_b ? a.sub(b) : a.sub(s);
    case ChainOp::mul: return has_b ? a.mul(b) : a.mul(s);
    case ChainOp::div: return has_b ? a.div(b) : a.div(s);
    case ChainOp::relu_grad: return at::threshold_backward(a, b, 0);
    case ChainOp::less: return has_b ? a.lt(b) : a.lt(s);
    case ChainOp::less_equal: return has_b ? a.le(b) : a.le(s);
    case ChainOp::greater: return has_b ? a.gt(b) : a.gt(s);
    case ChainOp::greater_equal: return has_b ? a.ge(b) : a.ge(s);
    case ChainOp::equal: return has_b ? a.eq(b) : a.eq(s);
    case ChainOp::not_equal: return has_b ? a.ne(b) : a.ne(s);
    case ChainOp::select: return at::where(a, b, c);
    case ChainOp::fill: return b.masked_fill(a, s);
    case ChainOp::keep: return b.masked_fill(a.logical_not(), s);
    case ChainOp::own_tanh:
    case ChainOp::own_silu:
    case ChainOp::own_gelu:
    case ChainOp::own_tanh_grad:
    case ChainOp::own_silu_grad:
    case ChainOp::own_gelu_grad: return elementwise(v.op, a, b);
    case ChainOp::row_sum: return fixed_sum(a, {a.dim() - 1}, true);
    case ChainOp::row_mean: return fixed_sum(a, {a.dim() - 1}, true).div(s);
    case ChainOp::spread: return a.expand(sizes);
    case ChainOp::softmax: return row_softmax(a);
    case ChainOp::softmax_grad: return row_softmax_gradient(a, b);
    case ChainOp::log_softmax: return row_log_softmax(a);
    case ChainOp::log_softmax_grad: return row_log_softmax_gradient(a, b);
    case ChainOp::sqrt: return a.sqrt();
    case ChainOp::inverse_root:
    case ChainOp::rsqrt: return a.rsqrt();
    case ChainOp::exp: return a.exp();
    case ChainOp::log: return a.log();
    case ChainOp::tanh: return a.tanh();
    case ChainOp::erf: return a.erf();
    case ChainOp::sigmoid: return a.sigmoid();
    case ChainOp::silu: return at::silu(a);
    case ChainOp::gelu: return at::gelu(a, "tanh");
    case ChainOp::gelu_exact: return at::gelu(a);
    case ChainOp::pow: return a.pow(s);
    case ChainOp::tanh_grad: return at::tanh_backward(a, b);
    case ChainOp::sigmoid_grad: return at::sigmoid_backward(a, b);
    case ChainOp::silu_grad: return at::silu_backward(a, b);
    case ChainOp::gelu_grad: return at::gelu_backward(a, b, "tanh");
    case ChainOp::gelu_exact_grad: return at::gelu_backward(a, b);
    default: fail(Exit::internal, "a chain formula contains an op that only Chain may add");
  }
}

}  // namespace

int ChainFormula::push(const ChainValue& value) {
  values_.push_back(value);
  return static_cast<int>(values_.size()) - 1;
}

int ChainFormula::add_input(at::ScalarType dtype, bool needs_grad, bool per_row) {
  return push({.dtype = dtype, .needs_grad = needs_grad, .per_row = per_row, .input = inputs_++});
}

/// Returns whether the result of an elementwise op on these operands has one element per row.
bool ChainFormula::is_per_row(const std::array<int, 3>& from) const {
  return std::all_of(from.begin(), from.end(),
                     [&](int value) { return value < 0 || (*this)[value].per_row; });
}

int ChainFormula::add(ChainOp op, int a, int b, double number) {
  const auto& self = *this;
  const bool of_mask = self[a].dtype == at::kBool;  // in this case, b determines the dtype
  ChainValue made{.op = op, .from = {a, b, -1}, .dtype = of_mask ? self[b].dtype : self[a].dtype};
  if (!of_mask && b >= 0 && self[b].dtype != made.dtype) made.dtype = at::kFloat;
  made.number = number_for(op, number, made.dtype);
  made.needs_grad = self[a].needs_grad || (b >= 0 && self[b].needs_grad);
  made.per_row = is_per_row(made.from);
  if (op == ChainOp::row_sum || op == ChainOp::row_mean) made.per_row = true;
  if (op == ChainOp::spread) made.per_row = false;
  if (is_comparison(op)) {
    made.dtype = at::kBool;
    made.needs_grad = false;
  }
  return push(made);
}

int ChainFormula::add_select(int mask, int b, int c) {
  return push({.op = ChainOp::select,
               .from = {mask, b, c},
               .dtype = (*this)[b].dtype,
               .needs_grad = (*this)[b].needs_grad || (*this)[c].needs_grad,
               .per_row = is_per_row({mask, b, c})});
}

int ChainFormula::add_cast(int a, at::ScalarType dtype) {
  if ((*this)[a].dtype == dtype) return a;
  return push({.op = ChainOp::copy,
               .from = {a, -1, -1},
               .dtype = dtype,
               .needs_grad = (*this)[a].needs_grad,
               .per_row = (*this)[a].per_row});
}

int ChainFormula::add_like(const ChainValue& value, const std::array<int, 3>& from) {
  ChainValue made = value;
  made.from = from;
  return push(made);
}

/// Adds the gradients of the operands of value y, given the gradient dy of y, by the formulas of
/// ops/elementwise.cc, ops/math.cc and ops/reduce.cc. Returns the index of each operand's gradient,
/// or -1 if the operand has no gradient.
std::array<int, 3> ChainFormula::gradients_of(const ChainValue& v, int y, int dy) {
  const auto [a, b, c] = v.from;
  const auto needs = [&](int value) { return value >= 0 && (*this)[value].needs_grad; };

  switch (v.op) {
    case ChainOp::copy: return {add_cast(dy, (*this)[a].dtype), -1, -1};
    case ChainOp::add: return {dy, dy, -1};
    case ChainOp::sub: return {dy, needs(b) ? add(ChainOp::neg, dy) : -1, -1};
    case ChainOp::mul:
      if (b < 0) return {add(ChainOp::mul, dy, -1, v.number), -1, -1};
      return {needs(a) ? add(ChainOp::mul, dy, b) : -1, needs(b) ? add(ChainOp::mul, dy, a) : -1,
              -1};
    case ChainOp::div: {
      const int da = add(ChainOp::div, dy, b);
      if (!needs(b)) return {da, -1, -1};
      return {da, add(ChainOp::div, add(ChainOp::mul, add(ChainOp::neg, da), a), b), -1};
    }
    case ChainOp::relu: return {add(ChainOp::relu_grad, dy, y), -1, -1};
    case ChainOp::reciprocal:
      return {add(ChainOp::neg, add(ChainOp::mul, dy, add(ChainOp::mul, y, y))), -1, -1};
    case ChainOp::sqrt: return {add(ChainOp::div, dy, add(ChainOp::mul, y, -1, 2)), -1, -1};
    case ChainOp::inverse_root:
    case ChainOp::rsqrt:
      return {add(ChainOp::mul, add(ChainOp::mul, dy, add(ChainOp::pow, y, -1, 3)), -1, -0.5), -1,
              -1};
    case ChainOp::exp: return {add(ChainOp::mul, dy, y), -1, -1};
    case ChainOp::log: return {add(ChainOp::div, dy, a), -1, -1};
    case ChainOp::pow:
      return {add(ChainOp::mul, add(ChainOp::mul, dy, add(ChainOp::pow, a, -1, v.number - 1)), -1,
                  v.number),
              -1, -1};
    case ChainOp::erf: {
      const int density = add(ChainOp::exp, add(ChainOp::neg, add(ChainOp::mul, a, a)));
      return {add(ChainOp::mul, add(ChainOp::mul, dy, density), -1, 2 * std::numbers::inv_sqrtpi),
              -1, -1};
    }
    case ChainOp::own_tanh: return {add(ChainOp::own_tanh_grad, dy, y), -1, -1};
    case ChainOp::own_silu: return {add(ChainOp::own_silu_grad, dy, a), -1, -1};
    case ChainOp::own_gelu: return {add(ChainOp::own_gelu_grad, dy, a), -1, -1};
    case ChainOp::tanh: return {add(ChainOp::tanh_grad, dy, y), -1, -1};
    case ChainOp::sigmoid: return {add(ChainOp::sigmoid_grad, dy, y), -1, -1};
    case ChainOp::silu: return {add(ChainOp::silu_grad, dy, a), -1, -1};
    case ChainOp::gelu:
      return {add(ChainOp::gelu_grad, dy, add(ChainOp::clamp, a, -1, 30)), -1, -1};
    case ChainOp::gelu_exact:
      return {add(ChainOp::gelu_exact_grad, dy, add(ChainOp::clamp, a, -1, 30)), -1, -1};
    case ChainOp::row_sum: return {add(ChainOp::spread, dy), -1, -1};
    case ChainOp::row_mean:
      return {add(ChainOp::spread, add(ChainOp::mul, dy, -1, 1 / v.number)), -1, -1};
    case ChainOp::softmax: return {add(ChainOp::softmax_grad, dy, y), -1, -1};
    case ChainOp::log_softmax: return {add(ChainOp::log_softmax_grad, dy, y), -1, -1};
    case ChainOp::fill: return {-1, add(ChainOp::fill, a, dy), -1};
    default:  // select
      return {-1, needs(b) ? add(ChainOp::keep, a, dy) : -1,
              needs(c) ? add(ChainOp::fill, a, dy) : -1};
  }
}

/// Returns the index of the gradient that the engine would pass on to an operand: the sum of each
/// row of `gradient` if the operand has one element per row. Only float32 is summed here.
int ChainFormula::add_gradient(int gradient, const ChainValue& operand) {
  const ChainValue& given = (*this)[gradient];
  const bool is_summed = operand.per_row && !given.per_row && given.dtype == at::kFloat;
  return is_summed ? add(ChainOp::row_sum, gradient) : gradient;
}

std::vector<ChainUse> ChainFormula::add_backward(int result, int dy) {
  std::vector<int> gradient(static_cast<size_t>(result) + 1, -1);
  gradient[static_cast<size_t>(result)] = dy;

  std::vector<ChainUse> uses;
  for (int y = result; y >= 0; --y) {
    const ChainValue value = (*this)[y];
    const int g = gradient[static_cast<size_t>(y)];
    // Skip inputs, values that need no gradient, and values that the result does not depend on.
    if (value.op == ChainOp::input || !value.needs_grad || g < 0) continue;
    const std::array<int, 3> found = gradients_of(value, y, g);
    for (int k = 0; k < 3; ++k) {
      const int operand = value.from[static_cast<size_t>(k)], gives = found[static_cast<size_t>(k)];
      if (operand < 0 || !(*this)[operand].needs_grad) continue;
      const ChainValue of = (*this)[operand];
      const int passed = add_gradient(gives, of);
      if (of.op == ChainOp::input) {
        uses.push_back({.input = of.input, .value = y, .operand = k, .gradient = passed});
      } else {
        int& sum = gradient[static_cast<size_t>(operand)];
        const int term = add_cast(passed, of.dtype);
        sum = sum < 0 ? term : add(ChainOp::add, sum, term);
      }
    }
  }
  return uses;
}

std::vector<bool> ChainFormula::inputs_of(const std::vector<int>& wanted) const {
  const std::vector<bool> used = dependencies_of(wanted);
  std::vector<bool> read(static_cast<size_t>(inputs_), false);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (used[i] && values_[i].op == ChainOp::input)
      read[static_cast<size_t>(values_[i].input)] = true;
  }
  return read;
}

/// Returns for each value whether it is in `wanted` or a value in `wanted` depends on it.
std::vector<bool> ChainFormula::dependencies_of(const std::vector<int>& wanted) const {
  std::vector<bool> used(values_.size(), false);
  for (const int value : wanted) used[static_cast<size_t>(value)] = true;
  for (size_t i = values_.size(); i-- > 0;) {
    if (!used[i]) continue;
    for (const int value : values_[i].from) {
      if (value >= 0) used[static_cast<size_t>(value)] = true;
    }
  }
  return used;
}

bool ChainFormula::make_input(int value, const std::vector<int>& wanted) {
  if (!dependencies_of(wanted)[static_cast<size_t>(value)]) return false;
  ChainValue& made = values_[static_cast<size_t>(value)];
  made = {.dtype = made.dtype,
          .needs_grad = made.needs_grad,
          .per_row = made.per_row,
          .input = inputs_++};
  return true;
}

std::vector<at::Tensor> ChainFormula::run(const std::vector<int>& wanted,
                                          const std::vector<Chain::Input>& layouts,
                                          std::span<const at::Tensor> tensors,
                                          at::IntArrayRef sizes) const {
  const std::vector<bool> used = dependencies_of(wanted);
  const bool has_rows = std::any_of(values_.begin(), values_.end(), [](const ChainValue& v) {
    return v.per_row || needs_rows(v.op);
  });
  Chain chain(has_rows ? sizes.back() : 0);
  std::vector<int> place(values_.size(), -1);
  std::vector<const void*> inputs;
  for (size_t i = 0; i < values_.size(); ++i) {
    const ChainValue& v = values_[i];
    if (!used[i] || v.op != ChainOp::input) continue;
    Chain::Input layout = layouts[static_cast<size_t>(v.input)];
    layout.type = chain_type(v.dtype);
    layout.per_row = v.per_row;
    place[i] = chain.add_input(layout);
    inputs.push_back(tensors[static_cast<size_t>(v.input)].const_data_ptr());
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const ChainValue& v = values_[i];
    if (!used[i] || v.op == ChainOp::input) continue;
    Chain::Step step{.op = v.op, .number = v.number, .low = v.dtype == at::kBFloat16};
    for (size_t k = 0; k < step.from.size(); ++k)
      step.from[k] = v.from[k] < 0 ? -1 : place[static_cast<size_t>(v.from[k])];
    // ATen computes the powers 1, 2 and 3 by copying or multiplying, and calls a function for most
    // other exponents.
    const bool is_cube = v.op == ChainOp::pow && v.number == 3;
    if (v.op == ChainOp::pow && v.number == 1) step.op = ChainOp::copy;
    if (v.op == ChainOp::pow && (v.number == 2 || is_cube)) {
      step.op = ChainOp::mul;
      step.from[1] = step.from[0];
    }
    if (v.op == ChainOp::row_mean) step.op = ChainOp::row_sum;
    place[i] = chain.add_step(step);
    if (is_cube)
      place[i] = chain.add_step(
          {.op = ChainOp::mul, .from = {place[i], step.from[0], -1}, .low = step.low});
    if (v.op == ChainOp::row_mean)
      place[i] =
          chain.add_step({.op = ChainOp::div, .from = {place[i], -1, -1}, .number = v.number});
  }

  std::vector<at::Tensor> results;
  std::vector<void*> outputs;
  for (const int value : wanted) {
    const at::ScalarType dtype = (*this)[value].dtype;
    results.push_back(at::empty(sizes_of(value, sizes), at::TensorOptions(dtype)));
    outputs.push_back(results.back().mutable_data_ptr());
    chain.add_output(place[static_cast<size_t>(value)], chain_type(dtype));
  }
  if (!wanted.empty()) chain.run(inputs, outputs, c10::multiply_integers(sizes));
  return results;
}

std::vector<at::Tensor> ChainFormula::run_by_aten(const std::vector<int>& wanted,
                                                  std::span<const at::Tensor> tensors,
                                                  at::IntArrayRef sizes) const {
  const at::AutoDispatchBelowAutograd plain;
  const std::vector<bool> used = dependencies_of(wanted);
  std::vector<at::Tensor> made(values_.size());
  for (size_t i = 0; i < values_.size(); ++i) {
    const ChainValue& v = values_[i];
    if (!used[i]) continue;
    const auto from = [&](size_t k) {
      return v.from[k] < 0 ? at::Tensor() : made[static_cast<size_t>(v.from[k])];
    };
    made[i] = v.op == ChainOp::input ? tensors[static_cast<size_t>(v.input)]
                                     : result_by_aten(v, from(0), from(1), from(2), sizes);
  }

  std::vector<at::Tensor> results;
  for (const int value : wanted) results.push_back(made[static_cast<size_t>(value)]);
  return results;
}

std::vector<int64_t> ChainFormula::sizes_of(int value, at::IntArrayRef sizes) const {
  return (*this)[value].per_row ? per_row_sizes(sizes) : sizes.vec();
}

std::vector<int64_t> per_row_sizes(at::IntArrayRef sizes) {
  std::vector<int64_t> out = sizes.vec();
  out.back() = 1;
  return out;
}

}  // namespace lathe
