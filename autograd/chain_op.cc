#include "autograd/chain_op.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/plain.h"
#include "core/mode.h"

namespace lathe {
namespace {

/// A recorded formula with its backward pass. The op "fused" has one input for each use of a
/// formula input that needs a gradient, the last use first, so that the engine adds gradients in
/// the same order as without fusing. The other inputs of the formula follow, once each.
struct Recorded {
  ChainFormula formula, backward;
  int result = 0, dy = 0;
  std::vector<ChainUse> uses;  // their gradients are values of `backward`
  std::vector<int> kept;       // values that backward gets in addition to the inputs and dy
  std::vector<size_t> place;   // for each input of the formula, the first op input that holds it
  std::vector<Chain::Input> layouts;
  // For each input of the formula:
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::ScalarType> dtypes;
  std::vector<bool> reads;  // whether backward reads the input's values
  // For the complete formula:
  std::vector<int64_t> sizes;
  PerElement cost;
};

/// Returns how a chain reads a gradient: one value for all elements, for each row, or for each
/// element. Returns nullopt for other layouts, for which ATen's functions would divide their work
/// among threads differently than a chain does.
std::optional<Chain::Input> gradient_layout(const at::Tensor& dy) {
  if (dy.is_contiguous()) return Chain::Input{};
  if (dy.stride(-1) == 0 && dy.size(-1) > 1 && dy.select(-1, 0).is_contiguous())
    return Chain::Input{.inner = dy.size(-1), .size = dy.numel() / dy.size(-1)};
  const bool is_number = std::all_of(dy.strides().begin(), dy.strides().end(),
                                     [](int64_t stride) { return stride == 0; });
  return is_number ? std::optional(Chain::Input{.inner = 1, .size = 1}) : std::nullopt;
}

at::Tensor run_comparison(const ChainValue& v, const std::vector<Variable>& x) {
  const detail::Operand b = v.from[1] < 0 ? detail::Operand(v.number) : detail::Operand(x[1]);
  switch (v.op) {
    case ChainOp::less: return detail::compare(detail::Comparison::less, x[0], b);
    case ChainOp::less_equal: return detail::compare(detail::Comparison::less_equal, x[0], b);
    case ChainOp::greater: return detail::compare(detail::Comparison::greater, x[0], b);
    case ChainOp::greater_equal: return detail::compare(detail::Comparison::greater_equal, x[0], b);
    case ChainOp::equal: return detail::compare(detail::Comparison::equal, x[0], b);
    default: return detail::compare(detail::Comparison::not_equal, x[0], b);
  }
}

/// Runs the recorded ops one by one. `inputs` are the inputs of the op "fused"; the inputs that
/// backward does not read are zeros. `kept` has the values that Recorded::kept lists. These values
/// replace the results that this function computes, since those results may depend on the zeros.
Variable run_op_by_op(const Recorded& r, const std::vector<Variable>& inputs,
                      const std::vector<Saved>& kept) {
  const ModeGuard guard;
  mode().compute = at::kFloat;  // the casts of autocast were recorded as ops
  mode().chain = nullptr;

  const auto& values = r.formula.values();
  std::vector<std::array<int, 3>> use_of(values.size(), {-1, -1, -1});
  for (size_t i = 0; i < r.uses.size(); ++i)
    use_of[static_cast<size_t>(r.uses[i].value)][static_cast<size_t>(r.uses[i].operand)] =
        static_cast<int>(i);

  std::vector<Variable> results(values.size());
  for (size_t i = 0; i <= static_cast<size_t>(r.result); ++i) {
    const ChainValue& v = values[i];
    if (v.op == ChainOp::input) {
      results[i] = inputs[r.place[static_cast<size_t>(v.input)]];
      continue;
    }
    std::vector<Variable> operands;
    for (size_t k = 0; k < v.from.size() && v.from[k] >= 0; ++k) {
      const int use = use_of[i][k];
      operands.push_back(use >= 0 ? inputs[static_cast<size_t>(use)]
                                  : results[static_cast<size_t>(v.from[k])]);
    }
    if (v.dtype == at::kBool)
      results[i] = Variable(run_comparison(v, operands));
    else
      results[i] = run_value(v, operands, operands[0].data());

    const auto found = std::find(r.kept.begin(), r.kept.end(), static_cast<int>(i));
    if (found == r.kept.end()) continue;
    // Write without incrementing the tensor's version, because the op that returned the tensor may
    // have saved it: with another version, the op's backward would throw.
    const at::Tensor& value = kept[static_cast<size_t>(found - r.kept.begin())].data();
    std::memcpy(results[i].data().mutable_data_ptr(), value.const_data_ptr(), value.nbytes());
  }
  return results[static_cast<size_t>(r.result)];
}

struct Fused {
  static constexpr OpInfo info{.name = "fused", .exact = true, .elementwise = true};
  std::shared_ptr<const Recorded> recorded;
  std::vector<Saved> kept{};    // the formula's inputs; undefined if backward does not read them
  std::vector<Saved> values{};  // the values that Recorded::kept lists

  at::Tensor forward(at::TensorList x) {
    std::vector<at::Tensor> tensors;
    const Recorded& r = *recorded;
    for (size_t i = 0; i < r.place.size(); ++i) {
      tensors.push_back(x[r.place[i]]);
      kept.push_back(Saved::input(static_cast<int>(r.place[i])));
      if (r.reads[i]) kept.back() = tensors.back();
    }
    std::vector<int> wanted{r.result};
    for (const int value : r.kept) {
      if (value != r.result) wanted.push_back(value);
    }
    const auto results = r.formula.run(wanted, r.layouts, tensors, r.sizes);
    size_t next = 1;
    for (const int value : r.kept) {
      const bool is_result = value == r.result;
      values.push_back(is_result ? Saved::output() : Saved());
      values.back() = is_result ? results[0] : results[next++];
    }
    return results[0];
  }

  OpFlops flops(at::TensorList, const at::Tensor&) const {
    const auto n = static_cast<double>(c10::multiply_integers(recorded->sizes));
    return {.forward = {.other = recorded->cost.forward * n},
            .backward = {.other = recorded->cost.backward * n}};
  }

  GradList<at::Tensor> backward(const at::Tensor& given, const NeedsList& needs,
                                GradSlots& slots) const {
    const Recorded& r = *recorded;
    const at::Tensor dy = r.formula[r.result].per_row ? given.contiguous() : given;
    const auto layout = gradient_layout(dy);
    ChainFormula formula = r.backward;
    std::vector<ChainUse> uses = r.uses;
    for (size_t i = 0; i < uses.size(); ++i) {
      if (!needs[i]) uses[i].gradient = -1;
    }
    if (layout) add_up(formula, uses, slots);

    // A gradient that repeats one value along each row is computed once per row and then expanded.
    const auto computed = [&](int gradient) {
      return formula[gradient].op == ChainOp::spread ? formula[gradient].from[0] : gradient;
    };
    std::vector<int> wanted;
    for (const ChainUse& use : uses) {
      if (use.gradient < 0 || computed(use.gradient) == r.dy) continue;
      const int value = computed(use.gradient);
      if (std::find(wanted.begin(), wanted.end(), value) == wanted.end()) wanted.push_back(value);
    }

    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < kept.size(); ++i)
      tensors.push_back(r.reads[i] ? kept[i].data() : at::Tensor());
    tensors.push_back(dy);
    for (const Saved& saved : values) tensors.push_back(saved.data());

    const auto results = [&] {
      if (!layout) return formula.run_by_aten(wanted, tensors, r.sizes);
      std::vector<Chain::Input> layouts = r.layouts;
      layouts.push_back(*layout);
      layouts.resize(tensors.size());
      return formula.run(wanted, layouts, tensors, r.sizes);
    }();

    GradList<at::Tensor> grads(needs.size());
    for (size_t i = 0; i < uses.size(); ++i) {
      if (uses[i].gradient < 0) continue;
      const int value = computed(uses[i].gradient);
      const auto found = std::find(wanted.begin(), wanted.end(), value);
      grads[i] = found == wanted.end() ? dy : results[static_cast<size_t>(found - wanted.begin())];
      if (value != uses[i].gradient) grads[i] = grads[i].expand(r.sizes);
    }
    return grads;
  }

  GradList<Variable> backward(const Variable& dy, const NeedsList& needs) const {
    std::vector<Variable> inputs = constants(needs.size());
    const auto node = running_node();
    for (size_t i = 0; i < recorded->uses.size(); ++i)
      inputs[i] = Variable(inputs[i].data(), node->next[i]);
    return plain_gradients(inputs, needs, {dy}, [this](const std::vector<Variable>& x) {
      return std::vector{run_op_by_op(*recorded, x, values)};
    });
  }

 private:
  /// For each input that has the formula's shape and several uses, replaces the gradients of the
  /// uses by their sum, added in the engine's order. Does nothing for an input that already has a
  /// gradient in the engine, since the engine would add the uses' gradients to that gradient one by
  /// one.
  void add_up(ChainFormula& formula, std::vector<ChainUse>& uses, GradSlots& slots) const {
    for (size_t first = 0; first < uses.size(); ++first) {
      ChainUse& use = uses[first];
      const at::ScalarType dtype = recorded->dtypes[static_cast<size_t>(use.input)];
      const bool is_full = recorded->layouts[static_cast<size_t>(use.input)].size == 0;
      if (use.gradient < 0 || !is_full || !slots.is_first(first, dtype)) continue;
      for (size_t i = first + 1; i < uses.size(); ++i) {
        if (uses[i].input != use.input || uses[i].gradient < 0) continue;
        const int sum = formula.add_cast(use.gradient, dtype);
        use.gradient = formula.add(ChainOp::add, sum, formula.add_cast(uses[i].gradient, dtype));
        uses[i].gradient = -1;
      }
    }
  }

  /// Returns the op's inputs as constants. Inputs that backward does not read are zeros.
  std::vector<Variable> constants(size_t count) const {
    const Recorded& r = *recorded;
    std::vector<Variable> inputs(count), of_formula;
    for (size_t i = 0; i < kept.size(); ++i) {
      of_formula.emplace_back(
          kept[i].defined() ? kept[i].data()
                            : at::zeros({}, at::TensorOptions(r.dtypes[i])).expand(r.shapes[i]));
      inputs[r.place[i]] = of_formula.back();
    }
    for (size_t i = 0; i < r.uses.size(); ++i)
      inputs[i] = of_formula[static_cast<size_t>(r.uses[i].input)];
    return inputs;
  }
};

}  // namespace

Variable run_value(const ChainValue& v, std::span<const Variable> x, const at::Tensor& mask) {
  switch (v.op) {
    case ChainOp::copy: return cast(x[0], v.dtype);
    case ChainOp::add: return v.from[1] < 0 ? add_scalar(x[0], v.number) : add(x[0], x[1]);
    case ChainOp::sub: return sub(x[0], x[1]);
    case ChainOp::mul: return v.from[1] < 0 ? mul_scalar(x[0], v.number) : mul(x[0], x[1]);
    case ChainOp::div: return div(x[0], x[1]);
    case ChainOp::relu: return relu(x[0]);
    case ChainOp::reciprocal: return reciprocal(x[0]);
    case ChainOp::row_sum: return sum(x[0], {-1}, /*keepdim=*/true);
    case ChainOp::row_mean: return mean(x[0], {-1}, /*keepdim=*/true);
    case ChainOp::softmax: return softmax(x[0], -1);
    case ChainOp::log_softmax: return log_softmax(x[0], -1);
    case ChainOp::sqrt: return sqrt(x[0]);
    case ChainOp::inverse_root:
    case ChainOp::rsqrt: return rsqrt(x[0]);
    case ChainOp::exp: return exp(x[0]);
    case ChainOp::log: return log(x[0]);
    case ChainOp::pow: return pow(x[0], v.number);
    case ChainOp::own_tanh:
    case ChainOp::tanh: return tanh(x[0]);
    case ChainOp::erf: return erf(x[0]);
    case ChainOp::sigmoid: return sigmoid(x[0]);
    case ChainOp::own_silu:
    case ChainOp::silu: return silu(x[0]);
    case ChainOp::own_gelu:
    case ChainOp::gelu: return gelu(x[0]);
    case ChainOp::gelu_exact: return gelu(x[0], Gelu::exact);
    case ChainOp::select: return where(mask, x[1], x[2]);
    default: return masked_fill(x[1], mask, v.number);  // fill
  }
}

Variable apply_chain(const ChainFormula& formula, std::span<const ChainInput> from, int result,
                     at::IntArrayRef sizes, PerElement cost) {
  const auto r = std::make_shared<Recorded>();
  r->formula = r->backward = formula;
  r->result = result;
  r->sizes = sizes.vec();
  r->cost = cost;
  r->dy = r->backward.add_input(r->formula[result].dtype, false, r->formula[result].per_row);
  r->uses = r->backward.add_backward(result, r->dy);

  // Keep the results of tanh, of softmax and of ops that call ATen's functions, because these
  // results are expensive to compute again. (Without fusing, ops such as exp, tanh and softmax also
  // keep their results.) Keep sums of rows, because they take little memory.
  std::vector<int> wanted;
  for (const ChainUse& use : r->uses) wanted.push_back(use.gradient);

  for (int value = result; value >= 0; --value) {
    const ChainOp op = r->formula[value].op;
    const bool is_kept = calls_aten(op) || needs_rows(op) || op == ChainOp::own_tanh;
    if (is_kept && r->backward.make_input(value, wanted)) r->kept.push_back(value);
  }
  r->reads = r->backward.inputs_of(wanted);

  std::vector<Variable> inputs;
  r->place.assign(from.size(), SIZE_MAX);
  for (const ChainUse& use : r->uses) {
    size_t& place = r->place[static_cast<size_t>(use.input)];
    place = std::min(place, inputs.size());
    inputs.push_back(from[static_cast<size_t>(use.input)].variable);
  }
  for (size_t i = 0; i < from.size(); ++i) {
    r->layouts.push_back(from[i].layout);
    r->shapes.push_back(from[i].variable.sizes().vec());
    r->dtypes.push_back(from[i].variable.dtype());
    if (r->place[i] != SIZE_MAX) continue;
    r->place[i] = inputs.size();
    inputs.push_back(from[i].variable.detach());
  }
  return lathe::apply(Fused{.recorded = r}, inputs);
}

}  // namespace lathe
