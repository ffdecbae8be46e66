// Tests that sums and means of rows, and softmax, become parts of fused ops. The results of fused
// ops are bitwise equal to the results of the ops run one by one.
#include <ATen/Parallel.h>

#include <cmath>
#include <functional>

#include "autograd/deferred.h"
#include "autograd/engine.h"
#include "autograd/fused.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/random_chain.h"

namespace {

using namespace lathe;

using RowFunction = std::function<Variable(const Variable& x, const Variable& w)>;

/// The result of a function, its gradients, and the counts of fused ops.
struct RowPass {
  std::vector<at::Tensor> tensors;
  FusionCount count;
};

/// Runs f on x [rows, columns] and w [columns], and the backward pass. If `is_deferred` is true,
/// defers results of any size.
RowPass run_rows(const RowFunction& f, bool is_deferred, uint64_t seed, int64_t rows,
                 int64_t columns) {
  torch::manual_seed(seed);
  const Variable x = Variable::parameter(torch::randn({rows, columns})),
                 w = Variable::parameter(torch::randn({columns}));
  const FusionCount before = fusion_count();
  const Variable y = [&] {
    if (!is_deferred) return f(x, w);
    lathe::detail::DeferOps ops(/*least=*/1);
    Variable result = f(x, w);
    ops.compute();
    return result;
  }();
  const FusionCount after = fusion_count();
  backward(y, torch::randn(y.sizes()));
  return {{y.data(), x.grad(), w.grad()}, {after.ops - before.ops, after.fused - before.fused}};
}

Variable norm_by_hand(const Variable& x, const Variable& w) {
  const Variable centered = x - mean(x, {-1}, true);
  const Variable variance = mean(centered * centered, {-1}, true);
  return centered * rsqrt(variance + 1e-5) * w;
}

Variable masked_softmax(const Variable& x, const Variable& w) {
  const at::Tensor future = torch::ones(x.sizes(), at::kBool).triu(1);
  return softmax(masked_fill(x * 0.3, future, -INFINITY), -1) * w;
}

TEST_CASE("functions of rows become one op with bitwise the same results",
          "[deferred][row_chains]") {
  // The last value of each entry is the number of ops in the function.
  const std::vector<std::tuple<const char*, RowFunction, int64_t>> functions{
      {"layer norm", norm_by_hand, 8},
      {"masked softmax", masked_softmax, 4},
      {"RMS norm",
       [](const Variable& x, const Variable& w) {
         return x * rsqrt(mean(x * x, {-1}, true) + 1e-5) * w;
       },
       6},
      {"log softmax",
       [](const Variable& x, const Variable& w) { return log_softmax(x * w, -1) * w + 1.0; }, 4},
      {"shares of a sum",
       [](const Variable& x, const Variable& w) {
         const Variable e = relu(x * w) + 0.1;
         return e / sum(e, {-1}, true);
       },
       5},
      {"standard scores, by a square root",
       [](const Variable& x, const Variable& w) {
         const Variable centered = x - mean(x, {-1}, true);
         return w * centered / sqrt(mean(centered * centered, {-1}, true) + 0.1);
       },
       8},
      // In the next two entries, ATen computes gelu or sigmoid, and the gradient of the result of
      // this function has the same value for all elements of a row.
      {"a mean of the exact gelu",
       [](const Variable& x, const Variable& w) {
         const Variable shift = w * 2.0;
         return shift + mean(gelu(x, Gelu::exact), {-1}, true);
       },
       3},
      {"a mean of sigmoid",
       [](const Variable& x, const Variable& w) {
         const Variable shift = w * 2.0;
         return shift + mean(sigmoid(x), {-1}, true);
       },
       3},
      {"ATen's functions of values per row",
       [](const Variable& x, const Variable& w) {
         const Variable s = sum(x * w, {-1}, true) * 0.1;
         return sigmoid(s) * x + silu(s) * pow(s, 4.0);
       },
       9},
      {"one result per row",
       [](const Variable& x, const Variable& w) { return exp(sum(x * w, {-1}, true) * -0.01); }, 4},
  };

  for (const auto& [name, f, ops] : functions) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{2, 16},
                                                                                {5, 25},
                                                                                {64, 33},
                                                                                {65, 128},
                                                                                {300, 257},
                                                                                {100, 1000},
                                                                                {128, 1000},
                                                                                {4098, 16}}) {
      for (const uint64_t seed : {1, 2, 3}) {
        INFO(name << " of " << rows << " x " << columns << ", seed " << seed);
        const RowPass ours = run_rows(f, true, seed, rows, columns),
                      plain = run_rows(f, false, seed, rows, columns);
        CHECK((std::pair(ours.count.ops, ours.count.fused) == std::pair<int64_t, int64_t>(ops, 1)));
        CHECK(plain.count.ops == 0);
        for (size_t i = 0; i < plain.tensors.size(); ++i)
          CHECK(has_bits_of(ours.tensors[i], plain.tensors[i]));
      }
    }
  }
}

TEST_CASE("fusion keeps the bits of gradients that flow through one value per row",
          "[deferred][row_chains]") {
  // Without fusion, such a gradient is an expanded tensor.
  const std::vector<std::pair<const char*, RowFunction>> functions{
      {"from a fused mean",
       [](const Variable& x, const Variable& w) {
         const Variable h = gelu(x, Gelu::exact);
         h.data();  // computes h
         return w + mean(h, {-1}, true);
       }},
      {"from an op that is not fused",
       [](const Variable& x, const Variable& w) {
         const Variable h = gelu(x, Gelu::exact) * 0.5 + w;
         h.data();
         return sum(h, {-1}) * 0.1;
       }},
      {"to silu",
       [](const Variable& x, const Variable& w) {
         const Variable h = silu(x + w);
         h.data();
         return sum(h, {-1}) * 0.1;
       }},
  };
  for (const auto& [name, f] : functions) {
    for (const int64_t columns : {25, 33, 64}) {
      for (uint64_t seed = 0; seed < 30; ++seed) {
        INFO(name << ", " << columns << " columns, seed " << seed);
        const RowPass ours = run_rows(f, true, seed, 40, columns),
                      plain = run_rows(f, false, seed, 40, columns);
        CHECK(ours.count.fused >= 1);
        for (size_t i = 0; i < plain.tensors.size(); ++i)
          CHECK(has_bits_of(ours.tensors[i], plain.tensors[i]));
      }
    }
  }
}

TEST_CASE("a fused norm keeps its input and values per row", "[deferred][row_chains]") {
  install_allocator();
  constexpr int64_t rows = 512, columns = 256;
  const Variable x = Variable::parameter(torch::randn({rows, columns})),
                 w = Variable::parameter(torch::randn({columns}));
  const auto kept = [&](bool is_deferred) {
    const MemoryScope scope(Memory::activations);
    const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
    const int64_t before = used();
    const Variable y =
        is_deferred ? deferred([&] { return norm_by_hand(x, w); }) : norm_by_hand(x, w);
    return used() - before;
  };
  // With fusion, only y and the two means of each row take memory besides x and w. Without fusion,
  // at least the centered values, the scaled values and y take memory.
  CHECK(kept(true) == (columns + 2) * rows * 4);
  CHECK(kept(false) > 3 * columns * rows * 4);
}

TEST_CASE("functions of rows that a fused op can't contain run as they do without fusion",
          "[deferred][row_chains]") {
  const auto fused_ops = [](const RowFunction& f, int64_t rows, int64_t columns) {
    const RowPass ours = run_rows(f, true, 1, rows, columns),
                  plain = run_rows(f, false, 1, rows, columns);
    for (size_t i = 0; i < plain.tensors.size(); ++i)
      CHECK(has_bits_of(ours.tensors[i], plain.tensors[i]));
    return ours.count.ops;
  };
  CHECK(fused_ops(norm_by_hand, 6, 40) == 8);
  // An ATen function is fused, however many elements each thread has.
  const RowFunction with_sigmoid = [](const Variable& x, const Variable& w) {
    return sigmoid(norm_by_hand(x, w));
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  CHECK(fused_ops(norm_by_hand, 129, 1000) == 8);
  CHECK(fused_ops(with_sigmoid, 128, 1000) == 9);
  CHECK(fused_ops(with_sigmoid, 129, 1000) == 9);
  at::set_num_threads(threads);
  // A single row is not fused, since ATen may divide its sum among threads.
  CHECK(fused_ops(norm_by_hand, 1, 40) < 8);
  // Sums over another dim are not fused.
  const RowFunction over_columns = [](const Variable& x, const Variable& w) {
    return (x - mean(x, {0}, true)) * w;
  };
  CHECK(fused_ops(over_columns, 6, 40) == 2);
  // A mean in bfloat16 is not fused, since mean() rounds the quotient but not the sum.
  const RowFunction low = [](const Variable& x, const Variable& w) {
    const Variable h = cast(x, at::kBFloat16);
    return (h - mean(h, {-1}, true)) * w;
  };
  CHECK(fused_ops(low, 6, 40) < 4);
  // gelu() of one value per row is not fused, since ATen divides these values among threads
  // differently than a fused op does.
  const RowFunction gelu_per_row = [](const Variable& x, const Variable& w) {
    return gelu(sum(x * w, {-1}, true) * 0.1, Gelu::exact) * 2.0 + x;
  };
  CHECK(fused_ops(gelu_per_row, 65, 128) < 6);
  // Short rows are not fused.
  CHECK(fused_ops(norm_by_hand, 6, 15) < 8);
  // A mask with one element per row is not fused.
  const RowFunction masked = [](const Variable& x, const Variable& w) {
    const at::Tensor mask = torch::arange(x.size(0)).remainder(2).to(at::kBool).unsqueeze(1);
    return masked_fill(mean(x, {-1}, true), mask, 0.5) * x + w;
  };
  CHECK(fused_ops(masked, 6, 40) < 4);

  // ATen's kernels, which sum rows in another order, are not fused.
  use_kernels(false);
  CHECK(fused_ops(norm_by_hand, 6, 40) < 8);
  use_kernels(true);
}

TEST_CASE("second derivatives go through functions of rows", "[fused][row_chains]") {
  torch::manual_seed(7);
  const Variable x = Variable::parameter(torch::randn({6, 20})),
                 w = Variable::parameter(torch::randn({20}));
  for (const auto& f : {norm_by_hand, masked_softmax}) {
    at::Tensor second[2];
    for (const int k : {0, 1}) {
      const Variable y = k == 0 ? f(x, w) : fused(f, x, w);
      CHECK((y.node()->name() == "fused") == (k == 1));
      const Variable first = grad(sum(y * y), {x}, {}, /*create_graph=*/true)[0];
      second[k] = grad(sum(first * first * first), {x})[0].data();
    }
    // Both second derivatives are sums of the same products, but in different orders. So they
    // differ by rounding errors, which are small relative to the largest value.
    const double scale = second[0].abs().max().item<double>();
    CHECK((second[0] - second[1]).abs().max().item<double>() < 1e-5 * scale);
  }
}

}  // namespace
