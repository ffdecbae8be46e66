// Tests that deferred() gives bitwise the same results as the ops run one by one, whatever op
// follows an elementwise op, and whether or not a result still has a handle (a Variable that refers
// to it).
#include "autograd/deferred.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <random>
#include <set>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/observer.h"
#include "autograd/ops.h"
#include "autograd/packing.h"
#include "autograd/recompute.h"
#include "core/dry_run.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/random_chain.h"

namespace {

using namespace lathe;

/// Runs f. If `is_deferred` is true, defers the ops of f, with results of any size.
template <class F>
auto run(bool is_deferred, const F& f) {
  if (!is_deferred) return f();
  lathe::detail::DeferOps ops(/*least=*/1);
  auto result = f();
  ops.compute();
  return result;
}

/// Returns how many ops of a graph are named "fused".
int fused_ops(const Variable& root) {
  int count = 0;
  std::vector<Node*> stack{root.node().get()};
  std::set<Node*> seen;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    count += node->name() == "fused";
    for (const Edge& edge : node->next) stack.push_back(edge.node.get());
  }
  return count;
}

/// A random graph. The graph depends only on the seed, not on whether its ops are deferred.
class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed) { torch::manual_seed(seed); }

  struct Result {
    std::vector<at::Tensor> tensors;  // values that were read, results, gradients
    int fused = 0;
  };

  Result run(bool is_deferred) {
    const bool low = draw(4) == 0;
    const at::ScalarType compute = draw(5) == 0 ? at::kBFloat16 : at::kFloat;
    for (int i = 0; i < 4; ++i) {
      const auto sizes = i < 2 ? std::vector<int64_t>{rows_, columns_} : some_sizes();
      const at::Tensor t = torch::randn(sizes).to(low && draw(2) == 0 ? at::kBFloat16 : at::kFloat);
      leaves_.push_back(Variable::parameter(t));
      pool_.push_back(draw(5) == 0 ? leaves_.back().detach() : leaves_.back());
    }

    const Variable root = ::run(is_deferred, [&] {
      const Autocast autocast(compute);
      for (size_t n = 4 + draw(24); n > 0; --n) step();
      Variable all = sum(cast(pool_.back(), at::kFloat));
      for (size_t k = draw(3); k > 0; --k) all = all + sum(cast(any(), at::kFloat)) * 0.5;
      return all;
    });
    result_.tensors.push_back(root.data());
    result_.fused = fused_ops(root);
    if (root.requires_grad()) backward(root);
    for (const Variable& leaf : leaves_) result_.tensors.push_back(leaf.grad());
    for (const Variable& v : pool_) result_.tensors.push_back(v.data());
    return std::move(result_);
  }

 private:
  size_t draw(size_t n) { return static_cast<size_t>(random_() % n); }
  std::vector<int64_t> some_sizes() {
    const std::vector<std::vector<int64_t>> all{
        {rows_, columns_}, {columns_}, {rows_, 1}, {1, columns_}, {1}};
    return all[draw(all.size())];
  }
  Variable any() { return pool_[draw(2) == 0 ? draw(pool_.size()) : pool_.size() - 1]; }
  /// Returns a value of the shape [rows_, columns_].
  Variable full() {
    const Variable v = any();
    return v.sizes() == at::IntArrayRef({rows_, columns_}) ? v : v * leaves_[0];
  }
  static Variable wide(const Variable& v) { return cast(v, at::kFloat); }
  void add(Variable v) {
    pool_.push_back(std::move(v));
    // A value that has lost its handle may be fused into later ops.
    while (draw(3) != 0 && pool_.size() > 5)
      pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(draw(pool_.size() - 1)));
  }

  void step() {
    switch (draw(20)) {
      case 0:
        return add(
            matmul(wide(full()), transpose(wide(full()), 0, 1)).index({Slice{}, Slice{0, 1}}) *
            full());
      case 1: {
        // Adds values that use means of rows. Sometimes, the means are also read here.
        const Variable m = mean(wide(full()), 1, true);
        if (draw(3) == 0) result_.tensors.push_back(m.data().clone());
        if (draw(3) == 0) add(full() * m);
        return add(full() - rsqrt(m * m + 0.5));
      }
      case 2: return add(softmax(full(), 1));
      case 3: return add(full().detach() * any());
      case 4: {
        result_.tensors.push_back(full().data().clone());
        return;
      }

      case 5: {
        // A hook on a value is called even if nothing else refers to the value.
        const Variable v = full() * 0.7;
        if (v.requires_grad())
          v.register_hook([this](const at::Tensor& g) {
            result_.tensors.push_back(g.clone());
            return g * 0.5;
          });
        return add(tanh(v) * 0.9);
      }
      case 6: {
        const NoGrad no_grad;
        return add(full() * 0.3 + 0.1);
      }
      case 7: {
        Variable v = full() * 0.5;
        v += full();
        return add(v);
      }

      case 8: {
        // Changes a constant in place after an op on it was recorded.
        Variable constant = Variable(leaves_[0].data().clone());
        const Variable y = full() + constant;
        {
          const NoGrad no_grad;
          constant *= 2.0;
        }
        return add(y + constant);
      }
      case 9: {
        const Variable x = full();
        const Variable h = sigmoid(x) * x;  // stays alive until the matrix product
        return add(
            matmul(wide(h), transpose(wide(leaves_[1]), 0, 1)).index({Slice{}, Slice{0, 1}}) + h);
      }
      case 10: return add(full() * (sum(full()).item() > 0 ? 0.5 : 0.7));

      case 11: {
        const Variable x = full();
        // x is used twice in one fused op and once in another. The order in which the gradients of
        // these uses are added must not change.
        const Variable a = x * 1.1, b = exp(x * -0.1);
        const Variable c = a * x;
        add(b);
        return add(c);
      }
      case 12: return add(where(full().data() > 0, full(), full() * 0.1));
      case 13: {
        // x and its detached copy are one value, but only x passes a gradient on.
        const Variable x = full() * 0.8;
        return add(x * x.detach());
      }
      case 14: {
        const Variable x = full();
        return add(recompute([](const Variable& v) { return tanh(v * 0.5) + v; }, x));
      }

      default: {
        std::vector<Variable> given{full(), any(), any(), any()};
        return add(RandomChain(random_())(given));
      }
    }
  }

  std::mt19937_64 random_;
  int64_t rows_ = 1 + static_cast<int64_t>(draw(9)), columns_ = 1 + static_cast<int64_t>(draw(40));
  std::vector<Variable> leaves_, pool_;
  Result result_;
};

/// Makes ATen use one thread until destroyed, because the tensors are small.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_CASE("ops that are fused are counted", "[deferred]") {
  const Variable x = Variable::parameter(torch::randn({200, 100}));
  const auto counted = [&](const std::function<Variable()>& f) {
    const FusionCount before = fusion_count();
    deferred(f);
    const FusionCount after = fusion_count();
    return std::pair(after.ops - before.ops, after.fused - before.fused);
  };
  using Counts = std::pair<int64_t, int64_t>;
  CHECK((counted([&] { return tanh(exp(x) + x); }) == Counts{3, 1}));
  const auto with_largest_between = [&] {
    const Variable y = tanh(exp(x));
    const Variable largest = amax(y, 1, true);
    return tanh(largest * exp(-x));
  };
  CHECK((counted(with_largest_between) == Counts{6, 2}));
  // A sum of rows does not end a fused op.
  const auto with_sum_between = [&] {
    const Variable y = tanh(exp(x));
    const Variable sums = sum(y, {1}, true);
    return tanh(sums * exp(-x));
  };
  CHECK((counted(with_sum_between) == Counts{7, 1}));
  // The temporaries live until the end of the expression. sum() computes the ops earlier, so exp(x)
  // must be stored, and nothing is fused.
  CHECK((counted([&] { return sum(tanh(exp(x))); }) == Counts{0, 0}));
  CHECK((counted([&] { return sum(tanh(x)); }) == Counts{0, 0}));  // one op alone is not fused
}

TEST_CASE("deferred random graphs are bitwise equal to their ops run one by one", "[deferred]") {
  const OneThread one_thread;
  const char* const wanted = std::getenv("LATHE_DEFERRED_GRAPHS");
  const uint64_t count = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 2000;
  int fused = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    INFO("seed " << seed);
    const auto ours = RandomGraph(seed).run(true), plain = RandomGraph(seed).run(false);
    REQUIRE(ours.tensors.size() == plain.tensors.size());
    for (size_t i = 0; i < plain.tensors.size(); ++i) {
      INFO("tensor " << i);
      REQUIRE(has_bits_of(ours.tensors[i], plain.tensors[i]));
    }
    CHECK(plain.fused == 0);
    fused += ours.fused;
  }
  CHECK(fused > static_cast<int>(count));
}

/// Returns the result and the gradients of a row of the op table, with an elementwise op before the
/// op and two after it, so that every op is between deferred ops.
std::vector<at::Tensor> run_row(const lathe::test::OpCase& row, bool is_deferred) {
  torch::manual_seed(3);
  const TrainingStep step(lathe::test::step_random);
  std::vector<Variable> leaves;
  for (const auto& input : row.inputs) {
    const at::Tensor t = torch::rand(input.shape) * (input.high - input.low) + input.low;
    leaves.push_back(input.grad ? Variable::parameter(t) : Variable(t));
  }
  const Variable y = run(is_deferred, [&] {
    std::vector<Variable> in;
    // The weight of linear_fp8 must be a parameter.
    for (const Variable& leaf : leaves) in.push_back(row.op == "linear_fp8" ? leaf : leaf * 1.0);
    const Variable out = row.ours(in);
    return out * out + 0.5;
  });
  std::vector<at::Tensor> all{y.data()};
  if (y.requires_grad()) backward(y, at::ones_like(y.data()));
  for (const Variable& leaf : leaves) {
    if (leaf.as_leaf() != nullptr) all.push_back(leaf.grad());
  }
  return all;
}

TEST_CASE("every op has bitwise the same results between deferred ops", "[deferred]") {
  const OneThread one_thread;
  for (const auto& row : lathe::test::op_table()) {
    INFO(row.op << " (" << row.label << ")");
    const auto ours = run_row(row, true), plain = run_row(row, false);
    REQUIRE(ours.size() == plain.size());
    for (size_t i = 0; i < ours.size(); ++i) CHECK(has_bits_of(ours[i], plain[i]));
  }
}

TEST_CASE("results without a handle are fused into later ops and not stored", "[deferred]") {
  install_allocator();
  torch::manual_seed(1);
  const Variable x = Variable::parameter(torch::randn({32, 16})),
                 w = Variable::parameter(torch::randn({16})),
                 b = Variable::parameter(torch::randn({16}));
  const auto used = [](auto&& f) {
    const MemoryScope scope(Memory::activations);
    const auto total = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
    const int64_t before = total();
    const Variable y = f();
    return std::pair(total() - before, fused_ops(y));
  };
  constexpr int64_t bytes = 32 * 16 * 4;
  // Only the result, and the result of sigmoid(), which backward needs, are stored.
  CHECK(used([&] { return run(true, [&] { return six_ops(x, w, b); }); }) ==
        std::pair(2 * bytes, 1));

  // A value with a handle is stored: one fused op ends with it, and the next one begins with it.
  std::vector<Variable> kept;
  const auto [all, ops] = used([&] {
    return run(true, [&] {
      kept.push_back(x * w + b);
      return kept[0] * sigmoid(kept[0] * 1.702) + x;
    });
  });
  CHECK(all == 3 * bytes);
  CHECK(ops == 2);
  CHECK(kept[0].data().equal((x * w + b).data()));

  // A single op is not replaced by a fused one.
  const Variable alone = run(true, [&] { return x * w; });
  CHECK(alone.node()->name() == "mul");
  CHECK(alone.data().equal((x * w).data()));

  // Small results are not deferred.
  CHECK(fused_ops(deferred([&] { return six_ops(x, w, b); })) == 0);
  const Variable large = Variable::parameter(torch::randn({1024, 16}));
  CHECK(fused_ops(deferred([&] { return six_ops(large, w, b); })) == 1);
}

TEST_CASE("a long chain of elementwise ops runs as several fused ops", "[deferred]") {
  const Variable x = Variable::parameter(torch::ones({4, 8}));
  const Variable y = run(true, [&] {
    Variable v = x;
    for (int i = 0; i < 500; ++i) v = v * 0.5 + x;
    return v;
  });
  CHECK(fused_ops(y) > 10);
  CHECK(y.data().equal(torch::full({4, 8}, 2.0f)));
  sum(y).backward();
  CHECK(x.grad().equal(torch::full({4, 8}, 2.0f)));
}

TEST_CASE("ops are not deferred if they are observed or their saved tensors are packed",
          "[deferred]") {
  install_allocator();
  const Variable x = Variable::parameter(torch::randn({32, 16})),
                 w = Variable::parameter(torch::randn({16})),
                 b = Variable::parameter(torch::randn({16}));
  std::vector<std::string> names;
  const auto observed = [&] {
    const ObserveOps observe{{.on_result = [&](const OpResult& r) { names.emplace_back(r.name); }}};
    return six_ops(x, w, b);
  };
  CHECK(fused_ops(run(true, observed)) == 0);
  CHECK(names.size() == 6);

  const PackSaved packing(Packing::bf16);
  CHECK(fused_ops(run(true, [&] { return six_ops(x, w, b); })) == 0);
}

TEST_CASE("a dry run allocates as much memory for deferred ops as a real run", "[deferred]") {
  const auto peak = [] {
    const Variable x = Variable::parameter(torch::ones({640, 32})),
                   w = Variable::parameter(torch::ones({32}));
    reset_memory_peaks();
    const int64_t before = memory_stats().total;
    const Variable y = deferred([&] { return sum(six_ops(x, w, w)); });
    CHECK(fused_ops(y) == 1);
    y.backward();
    return memory_stats().total_peak - before;
  };
  install_allocator();
  peak();
  const int64_t real = peak();
  const DryRun dry;
  peak();
  CHECK(peak() == real);
}

TEST_CASE("second derivatives go through deferred ops", "[deferred]") {
  torch::manual_seed(4);
  const at::Tensor data = torch::randn({5, 7});
  std::vector<at::Tensor> results;

  for (const bool is_deferred : {true, false}) {
    const Variable x = Variable::parameter(data), w = Variable::parameter(torch::ones({7}) * 0.3),
                   b = Variable::parameter(torch::ones({7}) * 0.1);
    int calls = 0;
    const Variable loss = run(is_deferred, [&] {
      // y and z have handles, so exp() is a separate op. Its second derivative flows through z.
      const Variable y = tanh(six_ops(x, w, b).detach() * 0.1 + x), z = exp(y);
      z.register_hook([&](const at::Tensor&) {
        ++calls;
        return at::Tensor();
      });
      const auto first = grad(sum(z * y), {x}, {}, /*create_graph=*/true);
      return sum(first[0] * first[0] * z);
    });

    const int before = calls;
    backward(loss);
    CHECK(before == 1);
    CHECK(calls == 2);
    results.push_back(x.grad());
  }

  // The largest gradients are near 10^3; each of about 20 ops has a relative rounding error of
  // 6e-8.
  CHECK(torch::allclose(results[0], results[1], /*rtol=*/1e-5, /*atol=*/1e-5));
}

TEST_CASE("changes in place of tensors that deferred ops use are noticed", "[deferred]") {
  const Variable x = Variable::parameter(torch::ones({4, 5}) * 0.3);

  // Change a result that a deferred op saved for its backward pass.
  Variable y = run(true, [&] { return exp(x); });
  y.data().add_(1);
  CHECK_THROWS_AS(sum(y).backward(), Error);

  // Change an input that a deferred op has not read yet, through an at::Tensor instead of a
  // Variable.
  const at::Tensor raw = torch::ones({4, 5});
  const Variable constant(raw);
  const auto change_raw = [&] {
    const Variable z = x * constant;
    raw.add_(1);
    return z * 2.0;
  };
  CHECK(error_of([&] { run(true, change_raw); }).find("float32[4,5]") != std::string::npos);
  CHECK_FALSE(lathe::detail::has_deferred_ops);
}

TEST_CASE("a parameter that is frozen after an op keeps the gradient of the op", "[deferred]") {
  for (const bool is_frozen_first : {false, true}) {
    Variable x = Variable::parameter(torch::ones({4, 5})),
             w = Variable::parameter(torch::ones({4, 5}));
    const Variable loss = run(true, [&] {
      w.requires_grad_(!is_frozen_first);
      const Variable y = x * w;
      w.requires_grad_(is_frozen_first);
      return sum(y);
    });
    w.requires_grad_(true);
    loss.backward();
    CHECK(w.grad().defined() == !is_frozen_first);
    CHECK(x.grad().defined());
  }
}

TEST_CASE("deferred() works inside a recomputed function under autocast", "[deferred]") {
  const Variable w = Variable::parameter(torch::randn({8, 8})),
                 x = Variable::parameter(torch::randn({4, 8}));
  const auto gradients = [&](bool is_deferred, bool is_recomputed) {
    w.leaf().grad = x.leaf().grad = at::Tensor();
    Variable loss;
    {
      const Autocast autocast(at::kBFloat16);
      const auto twice = [&](const Variable& v) {
        return run(is_deferred, [&] { return linear(linear(v * 2.0, w), w) * 0.5; });
      };
      loss = sum(cast(is_recomputed ? recompute(twice, x) : twice(x), at::kFloat));
    }
    loss.backward();
    return std::pair(w.grad(), x.grad());
  };

  const auto [w_plain, x_plain] = gradients(false, false);
  const auto [w_both, x_both] = gradients(true, true);
  CHECK(w_both.equal(w_plain));
  CHECK(x_both.equal(x_plain));
}

TEST_CASE("an exception discards the ops that have not run", "[deferred]") {
  const Variable x = Variable::parameter(torch::ones({4, 5}));
  Variable escaped;
  const auto throws = [&]() -> Variable {
    escaped = x * 2.0;
    throw std::runtime_error("stop");
  };
  CHECK_THROWS_AS(run(true, throws), std::runtime_error);
  CHECK_FALSE(lathe::detail::has_deferred_ops);
  CHECK(escaped.data().numel() == 0);
  CHECK(run(true, [&] { return x * 2.0 + 1.0; }).data().sum().item<float>() == 60);
}

}  // namespace
