// Tests of the contracts of every op and in-place function. The test cases iterate over tables, so
// a row that is added to a table is checked without further code.
#include <ATen/ops/zeros.h>

#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "autograd/einops.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/dtype.h"
#include "tests/support/catch.h"
#include "tests/support/messages.h"
#include "tests/support/op_case.h"

namespace {

using namespace lathe;
using lathe::test::is_sentence;
using lathe::test::message_of;
using lathe::test::OpCase;
using lathe::test::variables_of;
using Tensors = std::vector<at::Tensor>;
using Variables = std::vector<Variable>;

/// Returns the gradients of `in` for the cotangent `dy` of y, or none if y requires no gradient.
Tensors gradients_of(const Variable& y, const at::Tensor& dy, const Variables& in) {
  Tensors out;
  if (!y.requires_grad()) return out;
  for (const Variable& g : grad(y, in, Variable(dy))) out.push_back(g.data());
  return out;
}

bool same_tensors(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !a[i].equal(b[i])) return false;
  }
  return true;
}

/// Changes all values of a tensor.
void change_values(at::Tensor t) {
  if (t.numel() == 0) return;
  if (t.scalar_type() == at::kBool) {
    t.logical_not_();
  } else if (t.is_floating_point()) {
    t.add_(1);
  } else {
    t.copy_(t.eq(0).to(t.scalar_type()));
  }
}

/// While this object exists, collects the tensors that ops keep beside their inputs: tensor
/// attributes, and results of integer or bool dtypes.
class KeptTensors {
 public:
  Tensors tensors;

 private:
  const ObserveOps observe_{{
      .on_result =
          [this](const OpResult& result) {
            for (const at::Tensor& t : result.outputs) {
              if (!t.is_floating_point()) tensors.push_back(t);
            }
          },
      .on_attribute = [this](const at::Tensor& t) { tensors.push_back(t); },
  }};
};

/// A forward pass: the result, the inputs, and the tensors that the ops kept, inputs included.
struct ForwardPass {
  Variables in;
  Variable y;
  Tensors kept;
};
ForwardPass forward_pass(const OpCase& row, at::ScalarType dtype) {
  const TrainingStep step(lathe::test::step_random);
  ForwardPass pass;
  pass.in = variables_of(row, dtype);
  KeptTensors kept;
  pass.y = row.ours(pass.in);
  pass.kept = kept.tensors;
  for (const Variable& v : pass.in) pass.kept.push_back(v.data());
  return pass;
}

/// Changes each tensor that the row's ops keep, one tensor per pass, and returns the number of
/// passes that were refused.
int64_t check_changes(const OpCase& row, at::ScalarType dtype) {
  const ForwardPass first = forward_pass(row, dtype);
  const at::Tensor dy = first.y.data().clone();
  const Tensors expected = gradients_of(first.y, dy, first.in);
  int64_t refused = 0;
  for (size_t i = 0; i < first.kept.size(); ++i) {
    INFO("kept tensor " << i << ": " << describe(first.kept[i]));
    const ForwardPass pass = forward_pass(row, dtype);
    if (pass.kept.size() != first.kept.size()) continue;
    change_values(pass.kept[i]);

    Tensors got;
    const std::string message = message_of([&] { got = gradients_of(pass.y, dy, pass.in); });
    if (message.empty()) {
      CHECK(same_tensors(got, expected));
    } else {
      CHECK(message.find("changed in place") != std::string::npos);
      ++refused;
    }
  }
  return refused;
}

TEST_CASE("if a tensor that an op keeps changes, backward is an error or gives the same gradients",
          "[op_contracts]") {
  int64_t refused = 0;
  for (const OpCase& row : lathe::test::op_table()) {
    INFO(row.op << " (" << row.label << ")");
    for (const auto dtype : {at::kDouble, at::kFloat}) refused += check_changes(row, dtype);
  }
  CHECK(refused > 300);
}

struct IndexRow {
  std::string name;
  std::function<Variable(const Variable&, const at::Tensor&)>
      run;  ///< takes x [4, 3] and the tensor that changes
  at::Tensor tensor;
};

TEST_CASE("targets, weights and indices that change before backward never give a wrong gradient",
          "[op_contracts]") {
  const auto classes = [] { return lathe::test::longs({2, 0, 1, 2}); };
  const auto weights = [] { return torch::full({3}, 0.5, at::kDouble); };
  const std::vector<IndexRow> rows{
      {"nll_loss",
       [](const Variable& x, const at::Tensor& t) { return nll_loss(log_softmax(x, 1), t); },
       classes()},
      {"nll_loss's weight",
       [&](const Variable& x, const at::Tensor& t) {
         return nll_loss(log_softmax(x, 1), classes(), t);
       },
       weights()},
      {"cross_entropy", [](const Variable& x, const at::Tensor& t) { return cross_entropy(x, t); },
       classes()},
      {"cross_entropy with smoothing",
       [](const Variable& x, const at::Tensor& t) {
         return cross_entropy(x, t, {.label_smoothing = 0.1});
       },
       classes()},
      {"cross_entropy of probabilities",
       [](const Variable& x, const at::Tensor& t) { return cross_entropy(x, Variable(t)); },
       torch::full({4, 3}, 1.0 / 3, at::kDouble)},
      {"linear_cross_entropy",
       [](const Variable& x, const at::Tensor& t) {
         const Variable w(torch::arange(9, at::kFloat).reshape({3, 3}).div(9));
         return linear_cross_entropy(cast(x, at::kFloat), w, t);
       },
       classes()},
      {"binary_cross_entropy_with_logits's weight",
       [](const Variable& x, const at::Tensor& t) {
         return binary_cross_entropy_with_logits(x, Variable(torch::full({4, 3}, 0.5, at::kDouble)),
                                                 t);
       },
       weights()},
      {"embedding",
       [](const Variable& x, const at::Tensor& t) {
         const Variable rows = embedding(t, x);
         return sum(rows * rows);
       },
       classes()},
      {"topk's indices, as the caller gets them",
       [](const Variable& x, const at::Tensor& t) {
         auto [values, places] = topk(x, 2, 1);
         if (t.item<int64_t>() != 0) places.fill_(0);
         return sum(values * values);
       },
       torch::zeros({}, at::kLong)},
  };
  for (const IndexRow& row : rows) {
    INFO(row.name);
    const Variable x = Variable::parameter(torch::arange(12, at::kDouble).reshape({4, 3}).sin());
    const at::Tensor expected = grad(row.run(x, row.tensor.clone()), {x})[0].data();

    const at::Tensor changed = row.tensor.clone();
    const Variable y = row.run(x, changed);
    change_values(changed);
    at::Tensor got;
    const std::string message = message_of([&] { got = grad(y, {x})[0].data(); });
    const bool is_refused = message.find("changed in place") != std::string::npos;
    CHECK((is_refused || (message.empty() && got.equal(expected))));
  }
}

struct RawTensor {
  int64_t dim;
  at::Tensor index;
};
struct RawOptional {
  Saved x{};
  std::optional<at::Tensor> mask;
};
struct RawList {
  double value;
  Saved x{};
  std::vector<at::Tensor> all;
};
struct RawVariable {
  Saved x{};
  Variable v;
};
struct SavedTensors {
  int64_t dim;
  Saved index;
  std::vector<Saved> all;
  std::optional<double> value;
};

TEST_CASE("KeepsRawTensor detects an op that keeps a tensor without Saved", "[op_contracts]") {
  CHECK(lathe::detail::KeepsRawTensor<RawTensor>);
  CHECK(lathe::detail::KeepsRawTensor<RawOptional>);
  CHECK(lathe::detail::KeepsRawTensor<RawList>);
  CHECK(lathe::detail::KeepsRawTensor<RawVariable>);
  CHECK_FALSE(lathe::detail::KeepsRawTensor<SavedTensors>);
}

TEST_CASE("a mask that changes before recomputation is an error", "[op_contracts]") {
  const Variable x = Variable::parameter(torch::ones({3}));
  const at::Tensor mask = torch::zeros({3}, at::kBool);
  const auto part = [mask](const Variable& v) { return masked_fill(v * v, mask, 0); };
  backward(sum(recompute(part, x)));
  CHECK(x.grad().equal(torch::full({3}, 2.0)));

  const Variable y = sum(recompute(part, x));
  mask.fill_(1);
  CHECK(message_of([&] { backward(y); }).find("changed in place") != std::string::npos);
}

TEST_CASE("hooks that a recomputed function registers run once, and can be removed",
          "[op_contracts]") {
  const Variable x = Variable::parameter(torch::full({1}, 2.0));
  HookHandle handle;
  const auto part = [&handle](const Variable& v) {
    const Variable h = v * 2.0;
    handle = h.register_hook([](const at::Tensor& g) { return g * 3; });
    return h * h;
  };
  const auto gradient = [&](const Variable& y) { return grad(y, {x})[0].item(); };
  const double plain = gradient(part(x));
  CHECK(plain == 48);  // 2 h * 3 * 2 with h = 4
  CHECK(gradient(recompute(part, x)) == plain);
  CHECK(gradient(recompute([&](const Variable& v) { return recompute(part, v); }, x)) == plain);

  const Variable y = recompute(part, x);
  handle.remove();
  CHECK(gradient(y) == 16);

  int64_t calls = 0;
  const Variable w = Variable::parameter(torch::ones({1}));
  backward(recompute(
      [&](const Variable& v) {
        w.register_post_accumulate_grad_hook([&calls](Leaf&) { ++calls; });
        return v * w;
      },
      x));
  CHECK(calls == 1);
}

struct InPlaceRow {
  std::string name;
  std::function<Variable&(Variable&)> run;
};
const std::vector<InPlaceRow>& in_place_functions() {
  static const std::vector<InPlaceRow> rows{
      {"relu_", [](Variable& x) -> Variable& { return relu_(x); }},
      {"leaky_relu_", [](Variable& x) -> Variable& { return leaky_relu_(x, 0.1); }},
      {"tanh_", [](Variable& x) -> Variable& { return tanh_(x); }},
      {"sigmoid_", [](Variable& x) -> Variable& { return sigmoid_(x); }},
      {"masked_fill_",
       [](Variable& x) -> Variable& { return masked_fill_(x, torch::ones({3}, at::kBool), 3); }},
      {"add_", [](Variable& x) -> Variable& { return add_(x, Variable(torch::ones({3}))); }},
      {"mul_", [](Variable& x) -> Variable& { return mul_(x, 0.5); }}};
  return rows;
}

TEST_CASE(
    "every in-place function changes only values under NoGrad, and refuses a parameter elsewhere",
    "[op_contracts]") {
  std::set<std::string> named;
  for (const auto& [name, run] : in_place_functions()) {
    INFO(name);
    named.insert(name);
    const at::Tensor start = torch::arange(3, at::kFloat) - 1;

    Variable w = Variable::parameter(start.clone(), "w");
    const Variable handle = w;
    const Variable saved = sum(w * w);
    {
      const NoGrad no_grad;
      run(w);
    }
    CHECK(w.requires_grad());
    CHECK(w.as_leaf() == handle.as_leaf());
    CHECK(w.data().is_same(handle.data()));
    CHECK_FALSE(w.data().equal(start));
    CHECK(message_of([&] { backward(saved); }).find("changed in place") != std::string::npos);
    backward(sum(w));
    CHECK(w.grad().equal(torch::ones({3})));
    CHECK(message_of([&] { run(w); }).find("NoGrad") != std::string::npos);

    // A result within a graph stays part of the graph.
    const Variable leaf = Variable::parameter(start.clone());
    Variable inner = leaf + 1.0;
    {
      const NoGrad no_grad;
      run(inner);
    }
    backward(sum(inner));
    CHECK(leaf.grad().equal(torch::ones({3})));

    Variable none;
    CHECK(is_sentence(message_of([&] { run(none); })));
  }
  for (const std::string& op : op_registry()) {
    INFO(op);
    if (op.ends_with('_')) CHECK(named.contains(op));
  }
}

/// Returns whether a message names a function, all of its inputs, and the undefined one.
bool names_undefined_input(const std::string& message) {
  static const std::regex form(
      "[a-z_0-9]+\\(.*undefined.*\\): input [0-9]+ is an undefined Variable; it must hold a "
      "tensor");
  return std::regex_match(message, form);
}

TEST_CASE("an op without one of its inputs computes, or names the undefined input in a sentence",
          "[op_contracts]") {
  int64_t refused = 0, computed = 0;

  for (const OpCase& row : lathe::test::op_table()) {
    if (row.op == "interpolate_backward")
      continue;  // the rows of this op read the dtype of an input
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      INFO(row.op << " (" << row.label << ") without input " << i);
      const TrainingStep step(lathe::test::step_random);
      Variables in = variables_of(row, at::kFloat);
      in[i] = Variable();

      const std::string message = message_of([&] {
        const Variable y = row.ours(in);
        if (y.requires_grad()) backward(y, y.data());
      });

      if (message.empty()) {
        ++computed;
      } else {
        INFO(message);
        const bool lacks_bounds =
            message.find("needs a lower or an upper bound") != std::string::npos;  // clamp's
                                                                                   // message
        CHECK((is_sentence(message) && (names_undefined_input(message) || lacks_bounds)));
        ++refused;
      }
    }
  }

  // Many rows compute and many refuse, so both cases are tested.
  CHECK(computed > 20);
  CHECK(refused > 200);
}

/// Returns whether each element of a row's result depends on the elements at its position only;
/// nullopt if the result has another shape than an input.
std::optional<bool> is_elementwise(const OpCase& row) {
  Variables in = variables_of(row, at::kDouble);
  const TrainingStep step(lathe::test::step_random);
  const at::Tensor before = row.ours(in).data().flatten();
  for (Variable& x : in) {
    if (!x.defined() || x.numel() != before.numel() || x.numel() < 2) return std::nullopt;
    // Replace the first element by another value that the op accepts.
    at::Tensor changed = x.data().clone().flatten();
    changed[0] = changed[1];
    x = Variable(changed.view(x.sizes()));
  }
  const at::Tensor after = row.ours(in).data().flatten();
  return after.slice(0, 1).equal(before.slice(0, 1));
}

TEST_CASE("the result of an elementwise op depends on elements at its position only",
          "[op_contracts]") {
  int64_t checked = 0, others = 0;
  for (const OpCase& row : lathe::test::op_table()) {
    const std::optional<bool> found = is_elementwise(row);
    if (!found) continue;
    INFO(row.op << " (" << row.label << ")");
    if (elementwise_ops().contains(row.op)) {
      CHECK(*found);
      ++checked;
    }
    others += *found ? 0 : 1;
  }
  CHECK(checked > 40);
  CHECK(others > 5);  // softmax, norms and sums over a dim are recognized as not elementwise
}

TEST_CASE("a function of several ops names itself in the error if an input is undefined",
          "[op_contracts]") {
  const Variable none, x(torch::ones({2, 3}));
  const std::vector<std::pair<std::string, std::function<void()>>> rows{
      {"mse_loss", [&] { mse_loss(none, x); }},
      {"mse_loss", [&] { mse_loss(x, none, Reduction::sum); }},
      {"cross_entropy", [&] { cross_entropy(none, lathe::test::longs({0, 1})); }},
      {"kl_div_batchmean", [&] { kl_div_batchmean(none, x); }},
      {"interpolate_by", [&] { interpolate_by(none, 2, 2, Interpolation::nearest); }},
      {"flatten", [&] { flatten(none); }},
      {"argmax", [&] { argmax(none); }},
      {"argmin", [&] { argmin(none); }},
      {"stack", [&] { stack({x, none}, 0); }},
      {"index", [&] { (void)none[0]; }},
      {"einsum", [&] { einsum("ij,jk->ik", {x, none}); }},

      {"operator", [&] { (void)(none < 1); }},
      {"operator",
       [&] {
         Variable y = x;
         y += none;
       }},
      {"add_scalar", [&] { (void)(none + 1.0); }}};

  for (const auto& [name, use] : rows) {
    const std::string message = message_of(use);
    INFO(name << ": " << message);
    CHECK(message.starts_with(name + "("));
    CHECK(names_undefined_input(message));
  }

  // The check must refuse a message that names no op.
  CHECK_FALSE(names_undefined_input("a Variable is undefined: it holds no tensor"));
}

TEST_CASE("uses of an undefined Variable fail with one sentence", "[op_contracts]") {
  const Variable none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.requires_grad());
  CHECK(none.numel() == 0);
  const std::vector<std::function<void()>> uses{
      [&] { (void)none.sizes(); }, [&] { (void)none.size(0); }, [&] { (void)none.dim(); },
      [&] { (void)none.dtype(); }, [&] { (void)none.item(); },  [&] { none.backward(); },
      [&] { (void)none[0]; },      [&] { (void)(none + 1.0); }, [&] { (void)(none < none); },
      [&] { (void)(-none); }};
  for (const auto& use : uses) {
    const std::string message = message_of(use);
    INFO(message);
    CHECK(is_sentence(message));
  }
}

}  // namespace
