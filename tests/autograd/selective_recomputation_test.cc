// Tests of selective recomputation: the results with the most FLOPs per byte are kept, other
// results are recomputed, and gradients are bitwise equal to gradients without recomputation. A
// part is the function that recompute_selectively() runs.
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/memory.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace {

using namespace lathe;

/// A matrix product that counts how often it is computed, and that may save an intermediate.
template <bool has_inside>
struct CountedProduct {
  static constexpr OpInfo info{.name = has_inside ? "wrong_product_inside" : "wrong_product"};
  Saved a = Saved::input(0), b = Saved::input(1), twice{};
  static inline int64_t runs = 0;

  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    ++runs;
    const at::Tensor y = (a = a_).matmul(b = b_);
    if (has_inside) twice = y * 2;
    return y;
  }
  // da = dy b^T, db = a^T dy. Also checks that the intermediate has the same value as in the
  // forward pass.
  Grads<2> backward(const at::Tensor& dy, Needs<2>) const {
    if (has_inside) CHECK(twice.data().equal(a.data().matmul(b.data()) * 2));
    return {dy.matmul(b.data().t()), a.data().t().matmul(dy)};
  }
  static OpFlops flops(const at::Tensor& a, const at::Tensor&, const at::Tensor& y) {
    const auto products = static_cast<double>(2 * y.numel() * a.size(1));
    return {.forward = {.matmul = products}, .backward = {.matmul = 2 * products}};
  }
};
using InsideProduct = CountedProduct<true>;
using BareProduct = CountedProduct<false>;
Variable counted_product(const Variable& a, const Variable& b) {
  return apply(InsideProduct{}, a, b);
}

constexpr double whole_share = 1e9;

TEST_CASE("a kept result is not computed again, but a dropped result is",
          "[selective_recomputation]") {
  const Variable x = Variable::parameter(torch::randn({8, 8})),
                 w = Variable::parameter(torch::randn({8, 8}));
  const auto part = [w](const Variable& v) { return tanh(counted_product(exp(v), w)) * 2.0; };
  const auto runs_of = [&](double share) {
    x.leaf().grad.reset();
    w.leaf().grad.reset();
    InsideProduct::runs = 0;
    Selection selection{.share = share};
    const Variable y = recompute_selectively(selection, part, x);
    CHECK(InsideProduct::runs == 1);
    backward(sum(y));
    return InsideProduct::runs;
  };
  CHECK(runs_of(0) == 2);
  const at::Tensor dx = x.grad().clone(), dw = w.grad().clone();
  CHECK(runs_of(whole_share) == 1);
  CHECK(x.grad().equal(dx));
  CHECK(w.grad().equal(dw));

  x.leaf().grad.reset();
  w.leaf().grad.reset();
  backward(sum(part(x)));
  CHECK(x.grad().equal(dx));
  CHECK(w.grad().equal(dw));
}

TEST_CASE("keeping a result that is held outside costs no memory", "[selective_recomputation]") {
  const Variable x = Variable::parameter(torch::randn({8, 8})),
                 w = Variable::parameter(torch::randn({8, 8}));
  const auto runs_of = [&](auto op, bool is_last) {
    using Op = decltype(op);
    Op::runs = 0;
    Selection selection{.share = 0};
    const Variable y = recompute_selectively(
        selection,
        [=](const Variable& v) {
          const Variable product = apply(Op{}, tanh(v), w);
          return is_last ? product : product * 2.0;
        },
        x);
    backward(sum(y));
    CHECK(selection.spare == 0);
    return Op::runs;
  };
  CHECK(runs_of(BareProduct{}, true) == 1);
  CHECK(runs_of(BareProduct{}, false) == 2);
  // InsideProduct also needs its intermediate, which nothing outside the part holds, so it runs
  // again.
  CHECK(runs_of(InsideProduct{}, true) == 2);
}

TEST_CASE("the matrix products with the most FLOPs per byte are kept, within the share",
          "[selective_recomputation]") {
  // [64, 8] x [8, 64] has 16 FLOPs per element of its result, and [64, 64] x [64, 8] has 128.
  const Variable x = Variable::parameter(torch::randn({64, 64})),
                 narrow = Variable::parameter(torch::randn({64, 8})),
                 wide = Variable::parameter(torch::randn({8, 64}));

  const auto runs_of = [&](Selection selection) {
    InsideProduct::runs = 0;
    const Variable y = recompute_selectively(
        selection,
        [&](const Variable& v) {
          return tanh(counted_product(tanh(counted_product(v, narrow)), wide)) * 1.0;
        },
        x);
    backward(sum(y));
    return InsideProduct::runs;
  };

  // Without recomputation, the ops would save 64 x 8 elements twice for the first product (its
  // result and intermediate), 64 x 64 elements twice for the second product, and the results of
  // tanh.
  CHECK(runs_of({.share = 0}) == 4);
  CHECK(runs_of({.share = 0.15}) == 3);
  CHECK(runs_of({.share = 1}) == 2);

  // A part also uses the bytes that earlier parts left unused (Selection::spare).
  CHECK(runs_of({.share = 0, .spare = 2 * 64 * 8 * 4}) == 3);
  CHECK(runs_of({.share = 0, .spare = 2 * 64 * 8 * 4 - 1}) == 4);
}

TEST_CASE("any op can be kept, and gradients stay bitwise equal to those without recomputation",
          "[selective_recomputation]") {
  int64_t compared = 0;
  for (const test::OpCase& row : test::op_table()) {
    // Skip this row. It runs a backward pass within the part, which would recompute the part too
    // early.
    if (row.op == "interpolate_backward") continue;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      INFO(row.op << " (" << row.label << ") in " << c10::toString(dtype));
      const auto gradients = [&](std::optional<double> share) {
        const TrainingStep step(test::step_random);
        const std::vector<Variable> in = test::variables_of(row, dtype);

        Selection selection{.share = share.value_or(0), .products_only = false};
        const auto part = [ours = row.ours](const std::vector<Variable>& v) { return ours(v); };
        const Variable y = share ? recompute_selectively(selection, part, in) : part(in);
        std::vector<at::Tensor> out{y.data()};
        if (!y.requires_grad()) return out;
        for (const Variable& g : grad(y, in, Variable(y.data().clone()))) out.push_back(g.data());
        return out;
      };

      const auto plain = gradients(std::nullopt);
      for (const double share : {0.0, 0.5, whole_share}) {
        const auto again = gradients(share);
        REQUIRE(again.size() == plain.size());
        for (size_t i = 0; i < plain.size(); ++i) {
          CHECK(plain[i].defined() == again[i].defined());
          if (plain[i].defined()) CHECK(plain[i].equal(again[i]));
          ++compared;
        }
      }
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("a kept result keeps the engine's rules: second derivatives, retain, changes in place",
          "[selective_recomputation]") {
  const Variable x = Variable::parameter(torch::randn({4, 4}, at::kDouble)),
                 w = Variable::parameter(torch::randn({4, 4}, at::kDouble));
  const auto part = [w](const Variable& v) { return tanh(matmul(tanh(v), w)); };
  const auto second = [&](bool selective) {
    Selection selection{.share = whole_share};
    const Variable y = selective ? recompute_selectively(selection, part, x) : part(x);
    const Variable first = grad(sum(y), {x}, {}, /*create_graph=*/true)[0];
    return grad(sum(first * first), {x})[0].data();
  };
  CHECK(second(true).equal(second(false)));

  Selection selection{.share = whole_share};
  const Variable y = sum(recompute_selectively(selection, part, x));
  const at::Tensor once = grad(y, {x}, {}, false, /*retain=*/true)[0].data();
  CHECK(grad(y, {x})[0].data().equal(once));
  CHECK_THAT(error_of([&] { backward(y); }), ContainsSubstring("retain=true"));

  Variable inside;
  const Variable z = recompute_selectively(
      selection,
      [&](const Variable& v) {
        inside = matmul(v, w);
        return tanh(inside) * inside;
      },
      x);
  inside.data().add_(1);
  CHECK_THAT(error_of([&] { backward(sum(z)); }),
             ContainsSubstring("float64[4,4]") && ContainsSubstring("in place"));
}

TEST_CASE("a result that changes in place within the part is computed again",
          "[selective_recomputation]") {
  const Variable x = Variable::parameter(torch::randn({4, 4})),
                 w = Variable::parameter(torch::randn({4, 4}));
  const auto part = [w](const Variable& v) {
    Variable h = matmul(v, w);
    tanh_(h);
    return matmul(h, w) * 2.0;
  };
  Selection selection{.share = whole_share};
  const Variable y = recompute_selectively(selection, part, x);
  const at::Tensor dx = grad(sum(y), {x})[0].data();
  CHECK(dx.equal(grad(sum(part(x)), {x})[0].data()));
}

TEST_CASE("the first run of a part frees the results that cannot be kept",
          "[selective_recomputation]") {
  install_allocator();
  const Variable x = Variable::parameter(torch::ones({64, 1024}));
  constexpr int64_t bytes = 64 * 1024 * 4;
  int64_t held = 0;
  Selection selection;
  const Variable y = recompute_selectively(
      selection,
      [&held](const Variable& v) {
        const int64_t before = memory_stats().total;
        Variable h = v;
        for (int i = 0; i < 8; ++i) h = h + 1.0;
        held = memory_stats().total - before;
        return h;
      },
      x);
  CHECK(held < 2 * bytes);
}

/// Returns the bytes of activations that a forward pass of a model keeps.
template <class M>
double held_bytes(const M& model, const at::Tensor& ids, RecomputePolicy policy) {
  install_allocator();
  const MemoryScope scope(Memory::activations);
  const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
  const RecomputeBlocks guard(policy);
  const auto before = used();
  const Variable y = model.features(ids);
  return static_cast<double>(used() - before);
}

TEST_CASE("GPT and Llama keep less than half of their activations", "[selective_recomputation]") {
  GPTConfig g;
  g.n_layer = 8;
  g.n_head = 4;
  g.n_embd = 128;
  g.block_size = 128;
  g.vocab_size = 64;

  LlamaConfig l;
  l.n_layer = 8;
  l.n_head = 4;
  l.n_kv_head = 2;
  l.n_embd = 128;
  l.block_size = 128;
  l.vocab_size = 64;

  const GPT gpt(g);
  const Llama llama(l);
  const at::Tensor ids = torch::randint(64, {4, 128});

  const auto check = [&](const auto& model) {
    const double all = held_bytes(model, ids, RecomputePolicy::none),
                 some = held_bytes(model, ids, RecomputePolicy::selective),
                 inputs = held_bytes(model, ids, RecomputePolicy::blocks);
    CAPTURE(all, some, inputs);
    CHECK(some < 0.5 * all);
    CHECK(some > 1.5 * inputs);
  };

  check(gpt);
  check(llama);
}

}  // namespace
