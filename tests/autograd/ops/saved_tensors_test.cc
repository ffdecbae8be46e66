// Compares the number of tensors that each op keeps for backward with a bound, the smallest number
// that is known to suffice. docs/reference/saved-tensors.md lists the tensors; LATHE_TEST_WRITE=1
// writes that page.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/images.h"
#include "core/io/text.h"
#include "core/kernels/gemm.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;

/// The tensors that an op kept in all its runs.
struct KeptByOp {
  std::set<int> inputs, outputs;
  size_t others = 0;  // the largest number of tensors that are neither inputs nor outputs
  double fp32 = 0,
         bf16 = 0;  // kept bytes per element of the op's largest tensor, the maximum over its rows

  std::string text() const {
    std::string all;
    const auto add = [&](const std::string& what) { all += (all.empty() ? "" : ", ") + what; };
    for (const int i : inputs) add("input " + std::to_string(i));
    for (const int i : outputs) add(i == 0 ? "result" : "result " + std::to_string(i));
    if (others > 0) add(std::to_string(others) + (others == 1 ? " other" : " others"));
    return all.empty() ? "nothing" : all;
  }
};

/// Adds the tensors that the op of a result kept.
void add_result(const OpResult& result, bool is_low, KeptByOp& kept) {
  int64_t elements = 1;
  for (const Variable& v : result.inputs)
    elements = std::max(elements, v.defined() ? v.numel() : 0);
  for (const at::Tensor& t : result.outputs)
    elements = std::max(elements, t.defined() ? t.numel() : 0);

  // A tensor that was saved as an intermediate may share the storage of an input or a result.
  const auto is_in = [](const at::Tensor& t, const at::Tensor& other) {
    return other.defined() && t.storage().is_alias_of(other.storage());
  };
  // Tensors that share memory count once.
  std::map<const c10::StorageImpl*, int64_t> bytes;
  std::set<const c10::StorageImpl*> others;
  const_cast<Node*>(result.node)->visit_saved([&](Saved& saved) {
    const at::Tensor& t = saved.kept();
    if (!t.defined()) return;
    const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
    bytes[storage] = std::max(bytes[storage], t.numel() * t.element_size());

    if (saved.place() == Saved::Place::output) {
      kept.outputs.insert(saved.index());
      return;
    }
    if (saved.place() == Saved::Place::input) {
      kept.inputs.insert(saved.index());
      return;
    }
    for (size_t i = 0; i < result.outputs.size(); ++i) {
      if (!is_in(t, result.outputs[i])) continue;
      kept.outputs.insert(static_cast<int>(i));
      return;
    }
    for (size_t i = 0; i < result.inputs.size(); ++i) {
      if (!is_in(t, result.inputs[i].data())) continue;
      kept.inputs.insert(static_cast<int>(i));
      return;
    }
    others.insert(storage);
  });
  kept.others = std::max(kept.others, others.size());

  int64_t all = 0;
  for (const auto& [storage, n] : bytes) all += n;
  double& most = is_low ? kept.bf16 : kept.fp32;
  most = std::max(most, static_cast<double>(all) / static_cast<double>(elements));
}

/// Runs every row of the op table in both dtypes.
std::map<std::string, KeptByOp> kept_by_ops() {
  std::map<std::string, KeptByOp> ops;
  bool is_low = false;
  const ObserveOps observe({.on_result = [&](const OpResult& result) {
    if (result.node != nullptr) add_result(result, is_low, ops[result.name]);
  }});

  for (const test::OpCase& row : test::op_table()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      is_low = dtype == at::kBFloat16;
      const TrainingStep step(test::step_random);
      row.ours(test::variables_of(row, dtype));
    }
  }
  return ops;
}

std::string page_of(const std::map<std::string, KeptByOp>& ops) {
  std::string page =
      "# What ops keep for backward\n\n"
      "This page lists the tensors that each op keeps for the backward pass, and their size. A "
      "test checks\n"
      "the page: it runs every row of the op table (`tests/autograd/ops/op_table*.cc`) in float32 "
      "and in\n"
      "bfloat16. This command writes the page again:\n\n"
      "    LATHE_TEST_WRITE=1 build/tests/lathe_tests \"[saved_tensors]\"\n\n"
      "In the column `keeps`, \"other\" tensors are neither inputs nor results of the op. The "
      "columns `fp32`\n"
      "and `bf16` show the bytes that the op keeps per element of its largest tensor. If an op has "
      "several\n"
      "rows in the op table, the columns show the largest number. Tensors that share memory count "
      "once. "
      "The\n"
      "tensors in the op table are small, so weights and statistics of a few elements weigh more "
      "here than\n"
      "in a model. An input without a gradient is not kept if no other gradient depends on it.\n\n"
      "| op | keeps | fp32 | bf16 |\n|---|---|---|---|\n";
  for (const auto& [name, kept] : ops) {
    if (name.starts_with("wrong")) continue;
    page += "| " + name + " | " + kept.text() + " | " + format("%.4g", kept.fp32) + " | " +
            format("%.4g", kept.bf16) + " |\n";
  }
  return page;
}

/// The largest numbers of inputs, results and other tensors that an op may keep.
struct SavedBound {
  size_t inputs, outputs, others;
};
/// The bounds of ops that keep more than either their inputs or one result. A comment states the
/// reason for each bound.
const std::map<std::string, SavedBound>& saved_bounds() {
  static const std::map<std::string, SavedBound> bounds{
      // These keep attributes that the caller passes: indices, masks, targets, tables.
      {"embedding", {0, 0, 1}},
      {"gather", {0, 0, 1}},
      {"gather_backward", {0, 0, 1}},
      {"index", {0, 0, 3}},
      {"index_add", {0, 0, 1}},
      {"index_backward", {0, 0, 3}},
      {"index_select", {0, 0, 1}},
      {"masked_fill", {0, 0, 1}},
      {"masked_fill_", {0, 0, 1}},
      {"rotate", {0, 0, 1}},
      {"scatter_add", {0, 0, 1}},
      {"where", {0, 0, 1}},
      // This keeps the inputs that a chain's gradients depend on, and results of functions such as
      // exp.
      {"fused", {3, 0, 2}},
      // These keep the statistics: a few numbers for each row, group or channel.
      {"batch_norm", {3, 0, 2}},
      {"group_norm", {2, 0, 2}},
      {"layer_norm", {3, 0, 2}},
      {"rms_norm", {3, 0, 1}},
      // These keep the result, the logarithm of the sums over keys (Dao et al. 2022,
      // "FlashAttention"), the document starts and the angles. ATen's kernel keeps the result in
      // another order of dims.
      {"attention", {1, 1, 3}},
      {"grouped_attention", {3, 1, 3}},
      // These keep the argument of the activation, since the kernel computes the linear layer and
      // the activation in one pass.
      {"linear_gelu", {3, 0, 1}},
      {"linear_swiglu", {3, 0, 2}},
      // This keeps both operands in fp8 and their factors, which are smaller than the inputs.
      {"linear_fp8", {0, 0, 4}},
      // This keeps the new state, which the next step keeps as well.
      {"lstm_cell", {2, 1, 0}},
      // This keeps the states of all steps, the states before the first step, the gates of all
      // steps and, in float32, the cell states.
      {"lstm_layer", {6, 2, 2}},
      // These keep the positions that the results come from.
      {"max_pool2d", {0, 0, 1}},
      {"topk", {0, 1, 1}},
      // These keep the result in addition to the input.
      {"cumprod", {1, 1, 0}},
      {"logsumexp", {1, 1, 0}},
      {"max", {1, 2, 0}},
      {"min", {1, 2, 0}},
      {"norm", {1, 1, 0}},
      {"prod", {1, 1, 0}},
      {"std", {1, 1, 0}},
      // This keeps the log probabilities, which count as input 0, instead of the logits. It also
      // keeps the targets, the class of each row, the mask of ignored rows and the scale.
      {"cross_entropy", {1, 0, 4}},
      // This keeps the column of each target, two masks of rows, and two numbers per row.
      {"cross_entropy_of_tensor_ranks", {1, 0, 5}},
      // This keeps the gradients, which are computed in forward, and the targets. Second
      // derivatives need both inputs; the weight is a parameter, and x is the last norm's result.
      {"linear_cross_entropy", {2, 0, 3}},
  };
  return bounds;
}

TEST_CASE("no op keeps more for backward than its bound", "[saved_tensors]") {
  const auto ops = kept_by_ops();
  for (const auto& [name, bound] : saved_bounds()) {
    INFO(name);
    const bool is_fused = name.starts_with("linear_");
    if (!is_fused || (gemm_ready(Element::bf16) && gemm_ready(Element::f32)))
      CHECK(ops.contains(name));
  }
  for (const auto& [name, kept] : ops) {
    if (name.starts_with("wrong")) continue;
    INFO(name << " keeps " << kept.text());
    if (const auto found = saved_bounds().find(name); found != saved_bounds().end()) {
      CHECK(kept.inputs.size() <= found->second.inputs);
      CHECK(kept.outputs.size() <= found->second.outputs);
      CHECK(kept.others <= found->second.others);
      continue;
    }
    // Other ops keep only inputs, or only one result.
    CHECK(kept.others == 0);
    CHECK((kept.inputs.empty() || kept.outputs.empty()));
    CHECK(kept.outputs.size() <= 1);
  }
}

// An op that keeps its input, its result and an intermediate.
struct Greedy {
  static constexpr OpInfo info{.name = "wrong_greedy"};
  Saved x = Saved::input(0), y = Saved::output(), twice{};
  at::Tensor forward(const at::Tensor& x_) {
    twice = x_ * 2;
    return y = (x = x_).exp();
  }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {dy * y.data()}; }
};

TEST_CASE("inputs, results and other tensors that an op keeps are counted", "[saved_tensors]") {
  KeptByOp kept;
  {
    const ObserveOps observe(
        {.on_result = [&](const OpResult& result) { add_result(result, false, kept); }});
    apply(Greedy{}, Variable::parameter(torch::ones({8})));
  }
  CHECK(kept.text() == "input 0, result, 1 other");
  CHECK(kept.fp32 == 12);
}

TEST_CASE("docs/reference/saved-tensors.md lists the tensors that ops keep", "[saved_tensors]") {
  const fs::path path = test::source_folder() / "docs/reference/saved-tensors.md";
  const std::string page = page_of(kept_by_ops());
  if (std::getenv("LATHE_TEST_WRITE") != nullptr) std::ofstream(path) << page;
  if (!gemm_ready(Element::bf16) || !gemm_ready(Element::f32)) {
    WARN("Skipped: the page lists fused ops, and this CPU lacks the instructions for them.");
    return;
  }
  CHECK(test::slurp(path) == page);
}

/// Returns the bytes that a recorded op keeps.
int64_t saved_bytes_of(const Variable& y) {
  int64_t bytes = 0;
  y.node()->visit_saved([&](Saved& saved) {
    if (saved.defined()) bytes += saved.kept().numel() * saved.kept().element_size();
  });
  return bytes;
}

TEST_CASE("an op does not keep a tensor that only the gradient of an untrained input needs",
          "[saved_tensors]") {
  const Variable x = Variable::parameter(torch::randn({8, 16})), c(torch::randn({8, 16})),
                 w = Variable::parameter(torch::randn({16, 16})), frozen(torch::randn({16, 16}));
  const int64_t all = 8 * 16 * 4, weight = 16 * 16 * 4;
  CHECK(saved_bytes_of(x * x) == 2 * all);
  CHECK(saved_bytes_of(x * c) == all);
  CHECK(saved_bytes_of(c / x) == 2 * all);
  CHECK(saved_bytes_of(x / c) == all);
  CHECK(saved_bytes_of(matmul(x, w)) == all + weight);
  CHECK(saved_bytes_of(matmul(x, frozen)) == weight);
  CHECK(saved_bytes_of(matmul(c, w)) == all);
  CHECK(saved_bytes_of(linear(x, w)) == all + weight);
  CHECK(saved_bytes_of(linear(x, frozen)) == weight);
  const Variable image = Variable::parameter(torch::randn({1, 2, 8, 8})),
                 kernel(torch::randn({2, 2, 3, 3}));
  CHECK(saved_bytes_of(conv2d(image, kernel, {}, {})) == 2 * 2 * 3 * 3 * 4);

  // The gradients equal the gradients with a trained weight.
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    INFO(c10::toString(dtype));
    const auto dx = [&](bool trained) {
      const Variable v = Variable::parameter(x.data().to(dtype)),
                     weight_of(frozen.data().to(dtype));
      const Variable u = trained ? Variable::parameter(weight_of.data()) : weight_of;
      const Variable y = linear(v, u);
      return grad(y, {v}, Variable(y.data()))[0].data();
    };
    CHECK(dx(true).equal(dx(false)));
  }
}

}  // namespace
