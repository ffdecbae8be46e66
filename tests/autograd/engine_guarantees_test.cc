// Tests of guarantees of the engine that backward_test.cc does not cover: when a gradient is
// complete, which gradient a hook gets, threads, ties, and the counted FLOPs of ops with matrix
// products.
#include <barrier>
#include <thread>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/mode.h"
#include "nn/module.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"

namespace {

using namespace lathe;

TEST_CASE("a parameter's gradient is complete before anything earlier in the graph runs",
          "[engine_guarantees]") {
  std::vector<std::string> order;
  const auto parameter = [&](const std::string& name) {
    const Variable p = Variable::parameter(torch::ones({1}, at::kDouble));
    p.register_post_accumulate_grad_hook([&order, name](Leaf&) { order.push_back(name); });
    return p;
  };
  // The parameters are created before all nodes. If the engine's order depended only on age, the
  // parameters would come last.
  const Variable first = parameter("first"), twice = parameter("twice"), third = parameter("third");
  const auto named = [&](const Variable& v, const std::string& name) {
    v.register_hook([&order, name](const at::Tensor&) {
      order.push_back(name);
      return at::Tensor();
    });
    return v;
  };
  const Variable a = named(first * 2.0, "a"), b = named(a * twice, "b"), c = named(b * twice, "c");
  backward(named(c * third, "root"));
  // The gradient of `twice` waits for b, its last consumer, and is complete before a runs.
  CHECK(order == std::vector<std::string>{"root", "third", "c", "b", "twice", "a", "first"});
}

/// A small model with tied weights: an embedding, a linear layer, and a head that uses the
/// embedding's table.
struct Tied {
  Variable table, weight, bias;
  explicit Tied(at::ScalarType dtype) {
    torch::manual_seed(1);
    table = Variable::parameter(torch::randn({37, 20}).to(dtype));
    weight = Variable::parameter((torch::randn({20, 20}) * 0.3).to(dtype));
    bias = Variable::parameter(torch::randn({20}).to(dtype));
  }
  std::vector<Variable> all() const { return {table, weight, bias}; }
  Variable loss(int64_t micro) const {
    const at::Tensor ids = (torch::arange(24, at::kLong) * (7 + micro) + micro).remainder(37);
    return linear_cross_entropy(linear(embedding(ids, table), weight, bias), table,
                                (ids + 5).remainder(37));
  }
};

TEST_CASE(
    "a hook on a parameter sees only the pass's gradient, even if gradients are added in place",
    "[engine_guarantees]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // The hook and grad() see the same sums. In bfloat16 the two parts of the table's gradient may
    // be rounded separately.
    const double allowed = dtype == at::kFloat ? 1e-5 : 0x1p-6;
    const auto error = [](const at::Tensor& ours, const at::Tensor& wanted) {
      return ((ours.to(at::kDouble) - wanted.to(at::kDouble)).abs().max() /
              wanted.abs().max().to(at::kDouble))
          .item<double>();
    };

    for (const int64_t hooked_from : {0, 1, 2}) {
      const Tied model(dtype);
      const auto ps = model.all();
      std::vector<std::vector<at::Tensor>> own, seen(3), copies(3);
      for (int64_t micro = 0; micro < 3; ++micro) {
        own.emplace_back();
        for (const auto& g : grad(model.loss(micro), ps)) own.back().push_back(g.data());
        for (size_t i = 0; i < 3 && micro == hooked_from; ++i) {
          ps[i].register_hook([&, i](const at::Tensor& g) {
            seen[i].push_back(g);
            copies[i].push_back(g.clone());
            return at::Tensor();
          });
        }

        backward(model.loss(micro));
        for (size_t i = 0; i < 3; ++i) {
          at::Tensor total = own[0][i].to(at::kDouble);
          for (int64_t m = 1; m <= micro; ++m)
            total = total + own[static_cast<size_t>(m)][i].to(at::kDouble);
          INFO(dtype_name(dtype) << ", hooks from micro-batch " << hooked_from << ", parameter "
                                 << i << " after " << micro);
          CHECK(error(ps[i].grad(), total) < allowed);
        }
      }

      for (size_t i = 0; i < 3; ++i) {
        // grad() calls the hook too, so each micro-batch after the first hooked micro-batch appears
        // twice.
        INFO(dtype_name(dtype) << ", hooks from micro-batch " << hooked_from << ", parameter "
                               << i);
        REQUIRE(copies[i].size() == static_cast<size_t>(2 * (3 - hooked_from) - 1));
        for (size_t call = 0; call < copies[i].size(); ++call) {
          const size_t micro = static_cast<size_t>(hooked_from) + (call + 1) / 2;
          CHECK(error(copies[i][call], own[micro][i]) < allowed);
          CHECK(seen[i][call].equal(copies[i][call]));  // unchanged since the hook kept it
        }
      }

      if (hooked_from == 0)
        CHECK(error(own[0][0], own[1][0]) > 0.1);  // the gradients of micro-batches differ
    }
  }
}

TEST_CASE("tied maxima share the gradient equally along each dim", "[engine_guarantees]") {
  for (const int64_t dim : {0, 1, 2, -1}) {
    for (const bool keepdim : {false, true}) {
      for (const int64_t ties : {1, 2, 3, 4}) {  // 4: all elements are tied
        const at::Tensor x = torch::rand({4, 4, 4}, at::kDouble);
        const int64_t first = ties == 4 ? 0 : 4 - ties;
        x.narrow(dim, first, ties).fill_(2);
        const Variable p = Variable::parameter(x);
        const Variable y = amax(p, dim, keepdim);
        CHECK(y.data().eq(2).all().item<bool>());
        const at::Tensor dy = torch::randn(y.sizes(), at::kDouble);
        const at::Tensor dx = grad(y, {p}, Variable(dy))[0].data();
        at::Tensor wanted = torch::zeros_like(x);
        wanted.narrow(dim, first, ties)
            .copy_((keepdim ? dy : dy.unsqueeze(dim)).expand_as(wanted.narrow(dim, 0, ties)));
        INFO("dim " << dim << ", " << ties << " equal");
        CHECK((dx - wanted / ties).abs().max().item<double>() <
              1e-15);  // the roundings of one division and one product
      }
    }
  }
}

/// Runs `pass` `times` times in each of two threads. Returns the message of an error, or "".
template <class F>
std::string in_two_threads(int64_t times, F&& pass) {
  std::barrier together(2);
  std::array<std::string, 2> errors;
  const auto work = [&](size_t thread) {
    together.arrive_and_wait();
    try {
      for (int64_t i = 0; i < times; ++i) pass(static_cast<double>(thread));
    } catch (const std::exception& e) {
      errors[thread] = std::string(e.what()).substr(0, 200);  // ATen's messages have a backtrace
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  return errors[0].empty() ? errors[1] : errors[0];
}

constexpr int64_t times = 1001;

TEST_CASE("backward passes in two threads lose no gradients of a shared parameter",
          "[engine_guarantees]") {
  for (const bool begun : {true, false}) {
    const Variable p = Variable::parameter(torch::ones({4096}, at::kDouble));
    if (begun) backward(sum(p));
    CHECK(in_two_threads(times, [&](double thread) { backward(sum(p * (1 + thread))); }) == "");
    const double wanted = 3.0 * times + (begun ? 1 : 0);
    INFO((begun ? "a gradient was there, " : "no gradient was there, ")
         << p.grad().ne(wanted).sum().item<int64_t>() << " of 4096 elements are off");
    CHECK(p.grad().eq(wanted).all().item<bool>());
  }
}

TEST_CASE("backward passes in two threads lose no gradients of a weight that linear layers share",
          "[engine_guarantees]") {
  // Use integers, so that float32 sums are exact: each pass adds rows * 1 to each weight.
  const Variable w = Variable::parameter(torch::ones({64, 64})),
                 b = Variable::parameter(torch::ones({64}));
  const Variable x(torch::ones({8, 64}));
  CHECK(in_two_threads(times, [&](double) { backward(linear(x, w, b), torch::ones({8, 64})); }) ==
        "");
  INFO(w.grad().ne(16.0 * times).sum().item<int64_t>() << " of 4096 elements are off");
  CHECK(w.grad().eq(16.0 * times).all().item<bool>());
  CHECK(b.grad().eq(16.0 * times).all().item<bool>());
}

/// Returns the matmul FLOPs that are counted forward and backward for the op that `make` calls.
/// Input i needs a gradient if bit i of `subset` is set.
template <class F>
std::pair<double, double> counted(const std::vector<std::vector<int64_t>>& inputs, unsigned subset,
                                  F&& make) {
  std::vector<Variable> in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor t = torch::randn(inputs[i]);
    in.push_back((subset >> i & 1) != 0 ? Variable::parameter(t) : Variable(t));
  }
  FlopCount count;
  const CountFlops scope(count);
  const Variable y = make(in);
  if (subset != 0) backward(y, torch::ones(y.sizes()));
  return {count.forward.matmul, count.backward.matmul};
}

TEST_CASE("matrix products are counted as often as they are needed", "[engine_guarantees]") {
  using V = const std::vector<Variable>&;
  constexpr double r = 6, in = 5, out = 7, t = 4, c = 12, v = 9;
  const auto bit = [](unsigned subset, unsigned i) { return static_cast<double>(subset >> i & 1); };

  // A matmul of [n, k] and [k, m] takes 2 n k m FLOPs. The gradients of a linear layer for x and W
  // each take the same number.
  for (const bool kernels : {true, false}) {
    use_kernels(kernels);
    for (unsigned subset = 0; subset < 16; ++subset) {
      INFO((kernels ? "Lathe's" : "ATen's") << " kernels, inputs " << subset);
      const double one = 2 * r * in * out, needed = bit(subset, 0) + bit(subset, 1);
      CHECK(counted({{2, 3, 5}, {7, 5}, {7}, {2, 3, 7}}, subset, [](V x) {
              return linear(x[0], x[1], x[2], x[3]);
            }) == std::pair(one, needed * one));

      if (subset < 4) {
        CHECK(counted({{2, 3, 5}, {7, 5}}, subset, [](V x) { return linear(x[0], x[1]); }) ==
              std::pair(one, needed * one));
        // The first call has 4 products of [3, 5] and [5, 7]. The second call has 2 x 3 products,
        // whose factors are broadcast.
        const double batched = 4 * 2 * 3 * in * out, shared = 6 * 2 * 3 * in * out;
        CHECK(counted({{4, 3, 5}, {4, 5, 7}}, subset, [](V x) { return matmul(x[0], x[1]); }) ==
              std::pair(batched, needed * batched));
        CHECK(counted({{2, 1, 3, 5}, {3, 5, 7}}, subset, [](V x) { return matmul(x[0], x[1]); }) ==
              std::pair(shared, needed * shared));
        const double logits = 2 * r * in * v;
        CHECK(counted({{6, 5}, {9, 5}}, subset,
                      [](V x) {
                        return linear_cross_entropy(x[0], x[1], torch::arange(6, at::kLong));
                      }) == (kernels
                                 ? std::pair((1 + needed) * logits, 0.0)  // gradients are computed
                                                                          // with the loss
                                 : std::pair(logits, needed * logits)));
      }

      if (subset < 8) {
        CHECK(counted({{2, 3, 5}, {7, 5}, {7}}, subset, [](V x) {
                return linear_gelu(x[0], x[1], x[2]);
              }) == std::pair(one, needed * one));
      }

      // The forward pass computes q k^T and P v for 3 samples, 2 heads and all t^2 pairs. By
      // convention, masked pairs count too. The backward pass computes dP, dv, dq and dk.
      if (subset < 2) {
        const double square = 2 * 3 * t * t * c;
        CHECK(counted({{3, 4, 36}}, subset, [](V x) { return attention(x[0], 2); }) ==
              std::pair(2 * square, bit(subset, 0) * 4 * square));
      }
    }
  }
  use_kernels(true);
}

TEST_CASE("the counted FLOPs of a GPT's step agree with the formula", "[engine_guarantees]") {
  for (const bool tie : {true, false}) {
    GPTConfig m;
    m.n_layer = 2;
    m.n_head = 4;
    m.n_embd = 96;
    m.block_size = 32;
    m.vocab_size = 300;
    m.tie_weights = tie;
    m.bias = false;  // the formula counts all parameters, but biases take part in no matrix product
    GPT model = test::make_gpt(m, 1);
    const at::Tensor ids = torch::arange(2 * 32, at::kLong).view({2, 32});

    for (const bool kernels : {true, false}) {
      use_kernels(kernels);
      FlopCount count;
      const CountFlops scope(count);
      backward(head_loss(model, ids, ids.roll(1, 1)));

      INFO((kernels ? "Lathe's" : "ATen's") << " kernels" << (tie ? ", tied" : ""));
      CHECK(count.matmul() / 64 == Approx(model.flops_per_unit()).epsilon(0.01));
      const double early = kernels ? 2 * (2.0 * 2 * 32 * 96 * 300) : 0;  // the head's gradients,
                                                                         // computed with the loss
      CHECK(count.backward.matmul + early ==
            Approx(2 * (count.forward.matmul - early)).epsilon(1e-12));
    }
    use_kernels(true);
  }
}

/// An op whose backward takes the gradient that its input has accumulated so far, in float32.
struct WrongTaker {
  static constexpr OpInfo info{.name = "wrong_taker"};
  static inline bool taken = false;
  at::Tensor forward(const at::Tensor& x) { return x.clone(); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>, GradSlots& slots) const {
    const at::Tensor have = slots.take(0, at::kFloat);
    taken = have.defined();
    return {taken ? have + dy : dy};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const { return {dy}; }
};

TEST_CASE("an op takes an accumulated gradient only in the dtype that it asks for",
          "[engine_guarantees]") {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const Variable x = Variable::parameter(torch::ones({3}, dtype)), h = x * 2.0;
    const Variable early = apply(WrongTaker{}, h), late = h * 3.0;  // the newest node runs first
    backward(sum(early, {}) + sum(late, {}));
    CHECK(WrongTaker::taken == (dtype == at::kFloat));
    CHECK(x.leaf().grad.equal(torch::full({3}, 8.0, dtype)));
  }
}

TEST_CASE("autocast does not round the residual that a linear layer adds", "[engine_guarantees]") {
  torch::manual_seed(5);
  const Variable x(torch::randn({6, 16})), w = Variable::parameter(torch::randn({8, 16})),
                                           residual(torch::randn({6, 8}) + 1000);
  const Autocast autocast(Compute{at::kBFloat16});
  const at::Tensor y = linear(x, w, {}, residual).data();
  CHECK(y.scalar_type() == at::kFloat);
  // A residual of about 1000 would have an error of up to 2 in bfloat16.
  const at::Tensor product = x.data()
                                 .to(at::kBFloat16)
                                 .to(at::kFloat)
                                 .matmul(w.data().to(at::kBFloat16).to(at::kFloat).t());
  CHECK((y - residual.data() - product).abs().max().item<float>() < 0.1);
}

}  // namespace
