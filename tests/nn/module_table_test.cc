// Compares every module of the table with torch::nn in float64 and with central differences, and
// checks that the harness can fail.
#include <cmath>
#include <set>

#include "amp/amp.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "core/dtype.h"
#include "nn/layers.h"
#include "nn/module_call.h"
#include "tests/nn/module_case.h"
#include "tests/support/catch.h"
#include "tests/support/messages.h"

namespace lathe::test {
namespace {

class ModuleChecker {
 public:
  explicit ModuleChecker(const ModuleCase& row) : row_(row), parameters_(row.parameters()) {
    // Set random values, so that every term of a formula matters.
    for (const auto& p : parameters_) {
      p.parameter.data().copy_(torch::randn(p.parameter.sizes(), at::kDouble) * 0.5);
      weights_[p.path] = p.parameter.data().clone().requires_grad_();
    }
  }

  std::vector<std::string> run() {
    try {
      against_libtorch();
      against_differences();
      fail_mismatch();
    } catch (const std::exception& e) {
      failures_.push_back(str(row_.module, " (", row_.label, "): ", e.what()));
    }
    return failures_;
  }

 private:
  void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& wanted,
               double tolerance) {
    std::string problem;
    if (!ours.defined() || !wanted.defined()) {
      // If a parameter has no effect on the result, its gradient is undefined in Lathe and zero in
      // LibTorch.
      const at::Tensor& there = ours.defined() ? ours : wanted;
      if (there.defined() && there.abs().max().item<double>() > 1e-12)
        problem = "only one side has a gradient";
    } else if (ours.sizes() != wanted.sizes()) {
      problem = str("shape ", describe(ours.sizes()), " instead of ", describe(wanted.sizes()));
    } else if (ours.numel() > 0) {
      const double error = (ours - wanted).abs().max().item<double>();
      const double allowed = tolerance * std::max(1.0, wanted.abs().max().item<double>());
      if (!(error <= allowed)) problem = str("off by ", error, ", allowed ", allowed);
    }
    if (!problem.empty())
      failures_.push_back(str(row_.module, " (", row_.label, ") ", what, ": ", problem));
  }

  /// Returns fixed weights for the elements of result i.
  static at::Tensor weight_like(const at::Tensor& y, size_t i) {
    return torch::cos(torch::arange(y.numel(), at::kDouble) * 1.7 + static_cast<double>(i))
        .view(y.sizes());
  }
  Variable value(const std::vector<Variable>& in) const {
    const Training training(1);
    const auto y = row_.ours(in);
    Variable total;
    for (size_t i = 0; i < y.size(); ++i) {
      const Variable term = sum(y[i] * Variable(weight_like(y[i].data(), i)));
      total = total.defined() ? total + term : term;
    }
    return total;
  }
  std::vector<Variable> fresh() const {
    std::vector<Variable> in;
    for (const at::Tensor& t : row_.inputs) in.push_back(Variable::parameter(t));
    return in;
  }

  // In float64, results differ only because sums are computed in another order.
  void against_libtorch() {
    const auto in = fresh();
    Tensors x;
    for (const at::Tensor& t : row_.inputs) x.push_back(t.clone().requires_grad_());
    const Training training(1);
    const auto ours = row_.ours(in);
    const Tensors theirs = row_.theirs(weights_, x);
    if (ours.size() != theirs.size()) throw std::runtime_error("another number of results");
    at::Tensor total = torch::zeros({}, at::kDouble);
    for (size_t i = 0; i < ours.size(); ++i) {
      compare(str("result ", i), ours[i].data(), theirs[i].detach(), 1e-11);
      total = total + (theirs[i] * weight_like(theirs[i].detach(), i)).sum();
    }
    for (const auto& p : parameters_) p.parameter.leaf().grad.reset();
    backward(value(in));
    total.backward();
    for (size_t i = 0; i < in.size(); ++i)
      compare(str("gradient of input ", i), in[i].grad(), x[i].grad(), 1e-10);
    for (const auto& p : parameters_)
      compare("gradient of " + p.path, p.parameter.grad(), weights_.at(p.path).grad(), 1e-10);
  }

  // Central differences have a truncation error of about eps^2 and a rounding error of about 1e-16
  // / eps.
  void against_differences() {
    constexpr double eps = 1e-6;
    const auto in = fresh();
    for (const auto& p : parameters_) p.parameter.leaf().grad.reset();
    backward(value(in));

    const auto check = [&](const std::string& what, const at::Tensor& t,
                           const at::Tensor& gradient) {
      const at::Tensor x = t.view(-1),
                       g = gradient.defined() ? gradient.reshape(-1) : torch::zeros_like(x);

      for (int64_t i = 0; i < x.numel(); i += std::max<int64_t>(x.numel() / 5, 1)) {
        const double at = x[i].item<double>();
        const NoGrad no_grad;
        x[i] = at + eps;
        const double above = value(in).item();
        x[i] = at - eps;
        const double below = value(in).item();
        x[i] = at;
        const double wanted = (above - below) / (2 * eps), got = g[i].item<double>();
        if (!(std::abs(got - wanted) <= 1e-5 + 1e-3 * std::abs(wanted)))
          failures_.push_back(str(row_.module, " (", row_.label, ") ", what, "[", i,
                                  "] against differences: ", got, " instead of ", wanted));
      }
    };

    for (size_t i = 0; i < in.size(); ++i) check(str("input ", i), in[i].data(), in[i].grad());
    for (const auto& p : parameters_) check(p.path, p.parameter.data(), p.parameter.grad());
  }

  void fail_mismatch() {
    if (!row_.checks_shape || row_.inputs.empty()) return;
    auto in = fresh();
    in[0] =
        Variable(torch::cat({row_.inputs[0], row_.inputs[0]}, row_.inputs[0].dim() == 4 ? 1 : -1));
    std::string refusal;
    try {
      row_.ours(in);
    } catch (const Error& e) {
      refusal = e.what();
    }
    if (refusal.find(row_.module) == std::string::npos ||
        refusal.find("expected") == std::string::npos)
      failures_.push_back(str(row_.module, " (", row_.label,
                              "): an input of another size is reported as: ", refusal));
  }

  const ModuleCase& row_;
  std::vector<NamedParameter> parameters_;
  Weights weights_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> check_module(const ModuleCase& row) { return ModuleChecker(row).run(); }

}  // namespace lathe::test

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("every module with an undefined input computes without it, or names it in one sentence",
          "[module_table]") {
  int64_t refused = 0, computed = 0;
  for (const ModuleCase& row : module_table()) {
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      INFO(row.module << " (" << row.label << ") without input " << i);
      std::vector<Variable> in(row.inputs.begin(), row.inputs.end());
      in[i] = Variable();
      const std::string message = message_of([&] { row.ours(in); });
      if (message.empty()) {
        ++computed;
        continue;
      }
      INFO(message);
      // MultiHeadAttention gives its inputs names, so its message has another form.
      const bool is_first = i == 0 && row.module != "MultiHeadAttention";
      CHECK((is_sentence(message) && message.find("undefined") != std::string::npos));
      CHECK((!is_first || message.find("got undefined") != std::string::npos));
      ++refused;
    }
  }
  CHECK(computed > 10);
  CHECK(refused > 40);
}

TEST_CASE("every module agrees with torch::nn forward and backward, and its errors name it",
          "[module_table]") {
  for (const ModuleCase& row : module_table()) {
    INFO(row.module << " (" << row.label << ")");
    for (const auto& failure : check_module(row)) {
      INFO(failure);
      CHECK(false);
    }
    CHECK(true);
  }
}

TEST_CASE("every module has a row in the table", "[module_table]") {
  std::set<std::string> rows, modules = module_registry();
  for (const ModuleCase& row : module_table()) rows.insert(row.module);
  // Model kinds and their blocks are tested in other_models_test.cc and gpt_test.cc.
  for (const char* kind :
       {"GPT", "Block", "Llama", "LlamaBlock", "RNN", "MLP", "MLPLayer", "ConvNet", "BasicBlock"})
    CHECK(modules.erase(kind) == 1);
  CHECK(rows == modules);
  CHECK(rows.size() > 25);
}

TEST_CASE("check_module() reports a wrong module", "[module_table]") {
  struct Scaled {
    Variable weight = new_parameter({3});
    bool cut = false;
    Variable operator()(const Variable& x) const {
      ModuleCall call(*this, {{'C', 3}});
      call.input(x, "B C");
      return call.result(x * (cut ? weight.detach() : weight), "B C");
    }
    void visit(Visit& v) { v("weight", weight, Role::scale); }
  };
  const at::Tensor x = torch::randn({2, 3}, at::kDouble);
  const auto ours = [](const Scaled& m, const std::vector<Variable>& v) { return m(v[0]); };
  const auto right = [](const Weights& w, const Tensors& t) { return t[0] * w.at("weight"); };
  CHECK(check_module(module_row("Scaled", "right", Scaled{}, {x}, ours, right)).empty());

  Scaled cut;
  cut.cut = true;
  const auto failures = check_module(module_row("Scaled", "no gradient", cut, {x}, ours, right));
  REQUIRE(!failures.empty());
  CHECK_THAT(failures[0], ContainsSubstring("gradient of weight: only one side has a gradient"));

  const auto wrong = [](const Weights& w, const Tensors& t) {
    return t[0] * w.at("weight") * (1 + 1e-9);
  };
  CHECK_THAT(check_module(module_row("Scaled", "wrong value", Scaled{}, {x}, ours, wrong)).at(0),
             ContainsSubstring("result 0: off by"));

  // This module does not check its input's size, and computes with a part of a larger input.
  const auto unchecked = [](const Scaled& m, const std::vector<Variable>& v) {
    return slice(v[0], 1, 0, 3) * m.weight;
  };
  CHECK_THAT(check_module(module_row("Scaled", "no shape", Scaled{}, {x}, unchecked, right)).at(0),
             ContainsSubstring("an input of another size is reported as: "));
}

TEST_CASE("modules refuse wrong options, and empty bags of embeddings give zeros",
          "[module_table]") {
  const EmbeddingBag bag(5, 2, BagMode::max, /*padding=*/0);
  CHECK(bag(torch::zeros({2, 3}, at::kLong)).data().eq(0).all().item<bool>());
  CHECK_THAT(error_of([&] { bag(torch::zeros({4}, at::kLong), torch::tensor({1, 2}, at::kLong)); }),
             ContainsSubstring("EmbeddingBag: offsets") && ContainsSubstring("at 0,") &&
                 ContainsSubstring("ids, 4"));
  CHECK_THAT(error_of([&] { bag(torch::zeros({2, 2}, at::kLong), ones({2, 2})); }),
             ContainsSubstring("EmbeddingBag: scales") && ContainsSubstring("BagMode::sum"));
  CHECK_THAT(error_of([] { GroupNorm(3, 4); }),
             ContainsSubstring("GroupNorm: 3 groups") && ContainsSubstring("4 channels"));
  CHECK_THAT(error_of([] { MultiHeadAttention(6, 4); }),
             ContainsSubstring("MultiHeadAttention: 6 channels") && ContainsSubstring("4 heads"));
  CHECK_THAT(error_of([] { SimpleRNN(2, 3, {}, "sigmoid"); }),
             ContainsSubstring("SimpleRNN: ") && ContainsSubstring("sigmoid") &&
                 ContainsSubstring("tanh and relu"));
  CHECK_THAT(error_of([] { LSTM(2, 3)(ones({2, 4, 2}), {}, torch::tensor({4, 5}, at::kLong)); }),
             ContainsSubstring("LSTM: lengths") && ContainsSubstring("int64") &&
                 ContainsSubstring("from 1 to 4"));
}

TEST_CASE("a row whose keys are all masked gets zeros and finite gradients", "[module_table]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    MultiHeadAttention attention(4, 2);
    for (const auto& p : parameters(attention)) p.parameter.data().normal_();
    attention.out_proj.bias.data().zero_();
    const Variable x = Variable::parameter(torch::randn({2, 3, 4}));
    at::Tensor padding = torch::zeros({2, 3}, at::kBool);
    padding[1] = true;
    const Autocast autocast(dtype);
    const Variable y = attention(x, {.padding = padding});
    CHECK(y.data()[1].eq(0).all().item<bool>());
    CHECK(y.data()[0].ne(0).all().item<bool>());
    backward(sum(y));
    CHECK(x.grad().isfinite().all().item<bool>());
  }
}

}  // namespace
