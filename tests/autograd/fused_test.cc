// Tests of fused(): one op gives bitwise the same results as the ops run one by one, forward and
// backward, and second derivatives agree. A function that can't be fused runs as it does without
// fused().
#include "autograd/fused.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <random>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/observer.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/dry_run.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/random_chain.h"

namespace {

using namespace lathe;

/// Collects the names of the ops that run while this object exists.
struct NamesOfOps {
  std::vector<std::string> names;
  const ObserveOps observe{
      {.on_result = [this](const OpResult& r) { names.emplace_back(r.name); }}};
};

/// A value, the gradients of all parameters, and the name of the op that computed the value.
struct FusedPass {
  at::Tensor y;
  std::vector<at::Tensor> grads;
  std::string op;
};

/// Runs a random chain among other ops that use the same parameters. If `is_fused` is true, the
/// chain runs in fused(). Depending on the seed, the gradient that reaches the chain is contiguous,
/// broadcast or transposed.
FusedPass run_random(uint64_t seed, bool is_fused) {
  std::mt19937_64 random(seed * 7 + 1);
  torch::manual_seed(seed);
  const auto draw = [&](size_t n) { return static_cast<size_t>(random() % n); };
  static constexpr int64_t rows[]{1, 3, 17, 64, 300}, columns[]{1, 5, 16, 33, 257};
  const int64_t r = rows[draw(5)], c = columns[draw(5)];
  const std::vector<std::vector<int64_t>> shapes{{r, c}, {r, c}, {c}, {1, c}, {r, 1}, {1}};

  std::vector<Variable> leaves, in;
  for (size_t i = 0; i < 4; ++i) {
    const auto& sizes = i == 0 ? shapes[0] : shapes[draw(shapes.size())];
    const at::Tensor t = (torch::randn(sizes) * 2).to(draw(3) == 0 ? at::kBFloat16 : at::kFloat);
    leaves.push_back(Variable::parameter(t));
    // Not every input needs a gradient, and some are results of ops.
    in.push_back(draw(5) == 0   ? leaves.back().detach()
                 : draw(2) == 0 ? leaves.back() * 0.5
                                : leaves.back());
  }
  const RandomChain chain(seed);
  const auto run = [&](const Variable& a, const Variable& b, const Variable& d) {
    return chain({a, b, d, in[3]});  // in[3] is captured
  };

  FusedPass out;
  const Variable y = is_fused ? fused(run, in[0], in[1], in[2]) : run(in[0], in[1], in[2]);
  out.op = y.node() ? y.node()->name() : "";
  Variable root = draw(3) == 0 ? transpose(y, 0, 1) : y;
  // Other ops may have added to an input's gradient before the chain adds to it.
  if (draw(2) == 0) root = sum(root) + sum(in[0] * 3.0) + sum(tanh(in[1]));
  if (root.requires_grad())
    backward(root, root.dim() == 0 ? at::Tensor() : torch::randn(root.sizes()).to(root.dtype()));
  out.y = y.data();
  for (const Variable& leaf : leaves) out.grads.push_back(leaf.grad());
  return out;
}

TEST_CASE("fused random chains are bitwise equal to their ops run one by one", "[fused]") {
  const char* const wanted = std::getenv("LATHE_FUSED_CHAINS");
  const uint64_t count = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 400;
  uint64_t together = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    INFO("seed " << seed);
    const FusedPass ours = run_random(seed, true), plain = run_random(seed, false);
    REQUIRE(has_bits_of(ours.y, plain.y));
    for (size_t i = 0; i < plain.grads.size(); ++i) {
      INFO("gradient " << i);
      REQUIRE(has_bits_of(ours.grads[i], plain.grads[i]));
    }
    together += ours.op == "fused";
  }
  CHECK(together > count / 2);
}

TEST_CASE("a function of elementwise ops is one op with one result", "[fused]") {
  const Variable x = Variable::parameter(torch::randn({32, 16})),
                 w = Variable::parameter(torch::randn({16})),
                 b = Variable::parameter(torch::randn({16}));
  install_allocator();
  const MemoryScope scope(Memory::activations);
  const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
  const int64_t before = used();
  const NamesOfOps ops;
  const Variable y = fused(six_ops, x, w, b);
  CHECK(ops.names == std::vector<std::string>{"fused"});
  CHECK(used() - before == 2 * 32 * 16 * 4);  // the bytes of y and of the result of sigmoid()
  CHECK(y.node()->name() == "fused");
  CHECK(y.data().equal(six_ops(x.detach(), w.detach(), b.detach()).data()));

  // Observers see no mask: the fused op never computes the mask as a tensor.
  {
    int attributes = 0;
    const ObserveOps observe{{.on_attribute = [&](const at::Tensor&) { ++attributes; }}};
    const Variable chosen = fused([](const Variable& v) { return where(v > 0, v, v * 0.5); }, x);
    CHECK(chosen.node()->name() == "fused");
    CHECK(attributes == 0);
  }

  // A tensor that backward reads must not change before backward runs.
  const Variable z = fused(six_ops, x, w, b);
  {
    const NoGrad no_grad;
    Variable part = w;
    part += 1.0;
  }
  CHECK_THROWS_AS(z.backward(torch::ones({32, 16})), Error);
}

TEST_CASE("a dry run allocates as much memory for a fused op as a real run", "[fused]") {
  const auto used = [](auto&& f) {
    reset_memory_peaks();
    const int64_t before = memory_stats().total;
    f();
    return memory_stats().total_peak - before;
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto pass = [&] {
      const Variable x = Variable::parameter(torch::ones({640, 32}, dtype)),
                     w = Variable::parameter(torch::ones({32}, dtype));
      const NamesOfOps ops;
      const Variable y = fused(six_ops, x, w, w);
      CHECK(ops.names == std::vector<std::string>{"fused"});
      y.backward(torch::ones({640, 32}, dtype));
    };
    install_allocator();
    pass();
    const int64_t real = used(pass);
    const DryRun dry;
    pass();
    CHECK(used(pass) == real);
  }
}

TEST_CASE("a dry run fuses the same ops as a real run", "[fused]") {
  const auto names = [] {
    const Variable x = Variable::parameter(torch::ones({6, 4})), other(torch::ones({6, 4}));
    const NamesOfOps ops;
    fused([](const Variable& v) { return v * (v * 2.0).data().mean().item<double>(); }, x);
    fused([](const Variable& v) { return v * Variable(v.data().abs()); }, x);
    fused([&](const Variable& v) { return v * Variable(v.data() * other.data()); }, x);
    fused([](const Variable& v) { return v * 2.0 + v; }, x);
    return ops.names;
  };
  const std::vector<std::string> real = names();
  CHECK(real == std::vector<std::string>{"mul_scalar", "mul_scalar", "mul", "mul", "fused"});
  const DryRun dry;
  CHECK(names() == real);
}

TEST_CASE("second derivatives go through a fused op", "[fused]") {
  torch::manual_seed(4);
  const at::Tensor data = torch::randn({5, 7});
  std::vector<at::Tensor> results;
  for (const bool is_fused : {true, false}) {
    const Variable x = Variable::parameter(data), w = Variable::parameter(torch::ones({7}) * 0.3),
                   b = Variable::parameter(torch::ones({7}) * 0.1);
    const Variable y = is_fused ? fused(six_ops, x, w, b) : six_ops(x, w, b);
    const auto first = grad(sum(tanh(y)), {x, w}, {}, /*create_graph=*/true);
    backward(sum(first[0] * first[0]) + sum(first[1]));
    for (const Variable& v : {x, w, b}) results.push_back(v.grad());
  }
  for (size_t i = 0; i < 3; ++i)
    CHECK(torch::allclose(results[i], results[i + 3], /*rtol=*/1e-5, /*atol=*/1e-6));
}

TEST_CASE("second derivatives agree in mixed precision and through masks", "[fused]") {
  torch::manual_seed(9);
  const at::Tensor data = torch::randn({5, 7}), factor = torch::randn({7}).to(at::kBFloat16);
  const auto f = [](const Variable& x, const Variable& w) {
    const Variable h = where(x > 0.1, x * x, x * 0.5);
    const Variable low = cast(masked_fill(h, x < -1.0, 0.25), at::kBFloat16) * w;
    return cast(low, at::kFloat) * x;
  };
  std::vector<at::Tensor> results;
  for (const bool is_fused : {true, false}) {
    const Variable x = Variable::parameter(data), w = Variable::parameter(factor);
    const Variable y = is_fused ? fused(f, x, w) : f(x, w);
    CHECK((y.node()->name() == "fused") == is_fused);
    const auto first = grad(sum(tanh(y)), {x, w}, {}, /*create_graph=*/true);
    backward(sum(first[0] * first[0]) + sum(cast(first[1], at::kFloat)));
    for (const Variable& v : {x, w}) results.push_back(v.grad().to(at::kFloat));
  }
  for (size_t i = 0; i < 2; ++i)
    CHECK(torch::allclose(results[i], results[i + 2], /*rtol=*/4e-2, /*atol=*/4e-2));
}

TEST_CASE("a fused op keeps only the inputs that its backward reads", "[fused]") {
  torch::manual_seed(10);
  const at::Tensor dy = torch::randn({4, 6});
  const auto half_sum = [](const Variable& v, const Variable& u) { return (v + u) * 0.5; };
  for (const bool transposed : {false, true}) {
    INFO("transposed " << transposed);
    const Variable x = Variable::parameter(torch::randn({6, 4}));
    Variable r(torch::randn({6, 4}));
    const auto handles = r.data().use_count();
    const Variable y = fused(half_sum, x, r);
    CHECK(y.node()->name() == "fused");
    CHECK(r.data().use_count() == handles);
    {
      const NoGrad no_grad;
      r += 1.0;
    }
    if (transposed)
      backward(transpose(y, 0, 1), dy);
    else
      backward(y, dy.t().contiguous());
    CHECK(x.grad().equal(dy.t() * 0.5));
  }

  // Backward of tanh() reads its result, not its input.
  for (const bool transposed : {false, true}) {
    INFO("transposed " << transposed);
    at::Tensor results[2], second[2];
    for (const int k : {0, 1}) {
      const Variable x = Variable::parameter(torch::ones({6, 4}) * 0.3);
      Variable h = x * 2.0;
      const auto f = [](const Variable& v) { return tanh(v) * 3.0; };
      const Variable y = k == 0 ? fused(f, h) : f(h);
      {
        const NoGrad no_grad;
        h += 1.0;
      }
      const Variable first = grad(sum(y * y), {x}, {}, /*create_graph=*/true)[0];
      second[k] = grad(sum(first * first), {x}, {}, /*create_graph=*/true)[0].data();
      backward(transposed ? transpose(y, 0, 1) : y, transposed ? dy : dy.t().contiguous());
      results[k] = x.grad();
    }
    CHECK(has_bits_of(results[0], results[1]));
    CHECK(torch::allclose(second[0], second[1]));
  }

  // A second derivative does not read inputs on which no gradient depends.
  const Variable x = Variable::parameter(torch::randn({6, 4}));
  Variable r(torch::randn({6, 4}));
  const Variable y = fused([](const Variable& v, const Variable& u) { return v * v + u; }, x, r);
  {
    const NoGrad no_grad;
    r += 1.0;
  }
  backward(sum(grad(sum(y), {x}, {}, /*create_graph=*/true)[0] * 3.0));
  CHECK(torch::allclose(x.grad(), torch::full({6, 4}, 6.0f)));
}

TEST_CASE("gradients of any layout have the dtype that a parameter asks for", "[fused]") {
  torch::manual_seed(11);
  const at::Tensor data = torch::randn({6, 4}).to(at::kBFloat16), dy = torch::randn({4, 6});
  const Variable w(torch::randn({6, 4}));
  const auto f = [&](const Variable& v) { return v * w * 0.7; };
  at::Tensor results[2];
  for (const int k : {0, 1}) {
    const Variable x = Variable::parameter(data.clone());
    x.leaf().precision.grad_dtype = at::kFloat;
    const NamesOfOps ops;
    backward(transpose(k == 0 ? fused(f, x) : f(x), 0, 1), dy);
    // Backward runs no ops that observers see.
    if (k == 0) CHECK(ops.names == std::vector<std::string>{"fused", "transpose"});
    results[k] = x.grad();
  }
  CHECK(results[0].scalar_type() == at::kFloat);
  CHECK(has_bits_of(results[0], results[1]));
}

TEST_CASE("the inputs of a fused op may be outputs of one op", "[fused]") {
  torch::manual_seed(12);
  const at::Tensor data = torch::randn({6, 4});
  const auto f = [](const Variable& a, const Variable& b) { return a * b + tanh(a) * b; };
  at::Tensor results[2];
  for (const int k : {0, 1}) {
    const Variable x = Variable::parameter(data);
    const std::vector<Variable> parts = split(x * 2.0, {3, 3});
    const Variable y = k == 0 ? fused(f, parts[0], parts[1]) : f(parts[0], parts[1]);
    CHECK((y.node()->name() == "fused") == (k == 0));
    backward(y, torch::ones({3, 4}));
    results[k] = x.grad();
  }
  CHECK(has_bits_of(results[0], results[1]));
}

TEST_CASE("gelu in a fused op has the bits of the op gelu on any number of threads", "[fused]") {
  torch::manual_seed(13);
  const NoGrad no_grad;
  const int before = at::get_num_threads();

  for (const Gelu form : {Gelu::tanh, Gelu::exact}) {
    const auto f = [&](const Variable& v) { return gelu(v * 1.5, form) * 2.0; };
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t n : {15001, 16385, 20002, 32769, 40001, 70003, 100003}) {
        const Variable x((torch::randn({n}) * 2).to(dtype));
        for (const int threads : {1, 2, 3, 4}) {
          INFO(n << " on " << threads << " threads");
          at::set_num_threads(threads);
          CHECK(has_bits_of(fused(f, x).data(), f(x).data()));
        }
      }
    }

    const Variable x(torch::randn({32769}));
    at::set_num_threads(2);
    const NamesOfOps ops;
    fused(f, x);
    CHECK(ops.names == std::vector<std::string>{"fused"});
  }
  at::set_num_threads(before);
}

TEST_CASE("a function that can't be fused runs as it does without fused()", "[fused]") {
  torch::manual_seed(5);
  const Variable x = Variable::parameter(torch::randn({6, 4})),
                 w = Variable::parameter(torch::randn({4, 4}));
  const auto names_of = [](auto&& f) {
    const NamesOfOps ops;
    f();
    return ops.names;
  };

  using Function = std::function<Variable(const Variable&)>;
  const Variable row = Variable::parameter(torch::randn({4}));
  const at::Tensor noise = torch::randn({6, 4}), wide = torch::randn({3, 6, 4});
  const std::vector<std::pair<const char*, Function>> functions{
      {"a matrix product", [&](const Variable& v) { return matmul(v * 2.0, w) + 1.0; }},
      {"a matrix product after an op of smaller tensors",
       [&](const Variable& v) { return matmul(v * (1.0 + row), w); }},
      {"a reduction", [](const Variable& v) { return exp(v - amax(v, -1, true)); }},
      {"a value that is read",
       [](const Variable& v) { return v * (v * 2.0).data().mean().item<double>(); }},
      {"ATen on the values", [](const Variable& v) { return v * Variable(v.data().abs()); }},
      {"a detached value", [](const Variable& v) { return v * tanh(v).detach(); }},
      {"a larger tensor", [&](const Variable& v) { return v * 2.0 + wide; }},
      {"float64", [&](const Variable& v) { return cast(v, at::kDouble) * noise.to(at::kDouble); }},
      {"another layout", [&](const Variable& v) { return v * 2.0 * noise.t().contiguous().t(); }},
      {"the argument", [](const Variable& v) { return v; }},
      {"partly without a graph",
       [](const Variable& v) {
         const Variable h = [&] {
           const NoGrad no_grad;
           return tanh(v);
         }();
         return v * h;
       }},
      {"a hook",
       [](const Variable& v) {
         const Variable h = v * 2.0;
         h.register_hook([](const at::Tensor& g) { return g * 2; });
         return h + 1.0;
       }},
      {"dropout", [](const Variable& v) { return dropout(v * 2.0, 0.5); }},
  };

  for (const auto& [name, f] : functions) {
    INFO(name);
    at::Tensor values[2], gradients[2];
    std::vector<std::string> names[2];
    for (const int k : {0, 1}) {
      const TrainingStep step({.seed = 1, .step = 2, .first_sample = 0});
      x.leaf().grad.reset();
      Variable y;
      names[k] = names_of([&] { y = k == 0 ? fused(f, x) : f(x); });
      values[k] = y.data();
      if (y.requires_grad()) backward(y, torch::ones_like(y.data()));
      gradients[k] = x.grad();
    }
    CHECK(names[0] == names[1]);
    CHECK(has_bits_of(values[0], values[1]));
    CHECK(has_bits_of(gradients[0], gradients[1]));
  }

  // If the function throws an error, fused() throws the same error.
  const auto fails = [](const Variable& v) { return matmul(v, v) + 1.0; };
  std::string errors[2];
  for (const int k : {0, 1}) {
    try {
      k == 0 ? fused(fails, x) : fails(x);
    } catch (const Error& e) {
      errors[k] = e.what();
    }
  }
  CHECK(errors[0] == errors[1]);
  CHECK(!errors[0].empty());

  // Fill values beyond the dtype's range are errors; infinity is not.
  const Variable low(noise.to(at::kBFloat16)), high(noise);
  for (const double number : {3.39e38, 3.4e38, -1e39}) {
    const auto fill = [&](const Variable& v) { return masked_fill(v * 2.0, v > 0.0, number); };
    CHECK_THROWS(fill(low));
    CHECK_THROWS(fused(fill, low));
    if (number == -1e39) CHECK_THROWS(fused(fill, high));
  }
  const auto fill = [](const Variable& v) { return masked_fill(v * 2.0, v > 0.0, -INFINITY); };
  CHECK(has_bits_of(fused(fill, low).data(), fill(low).data()));
}

TEST_CASE("ops before an in-place change within a function read the old values", "[fused]") {
  torch::manual_seed(8);
  const Variable x(torch::randn({6, 4})), scale(torch::randn({4}));
  for (const int use : {0, 1}) {
    INFO("use " << use);
    const auto f = [&](const Variable& v) {
      Variable s = scale.detach() * 2.0;
      const Variable h = v * s;
      s += 1.0;
      return use == 0 ? h * s : h * 3.0;
    };
    CHECK(fused(f, x).data().equal(f(x).data()));
  }
  const auto masked = [&](const Variable& v) {
    const at::Tensor mask = scale.data() > 0.0;
    const Variable h = masked_fill(v * 2.0, mask, 0.5);
    mask.logical_not_();
    return masked_fill(h, mask, 0.25) + v;
  };
  CHECK(fused(masked, x).data().equal(masked(x).data()));
}

TEST_CASE("a function that changes its values in place runs as it does without fused()",
          "[fused]") {
  const NoGrad no_grad;
  const Variable x(torch::randn({6, 4}));
  for (const int how : {0, 1, 2}) {
    const auto f = [&](const Variable& v) {
      Variable h = v * 2.0;
      if (how == 0) h += 1.0;
      if (how == 1) mul_(h, 3);
      if (how == 2) at::Tensor(h.data()).add_(5);
      return h * 1.0;
    };
    CHECK(fused(f, x).data().equal(f(x).data()));
  }
}

TEST_CASE("an op of smaller tensors runs by itself, and captured Variables get gradients",
          "[fused]") {
  torch::manual_seed(6);
  const Variable x = Variable::parameter(torch::randn({9, 8})),
                 w = Variable::parameter(torch::randn({8}));
  const auto f = [&](const Variable& v) { return tanh(v * (1.0 + w)) * w; };
  std::vector<at::Tensor> results[2];
  for (const int k : {0, 1}) {
    x.leaf().grad.reset();
    w.leaf().grad.reset();
    const NamesOfOps ops;
    const Variable y = k == 0 ? fused(f, x) : f(x);
    if (k == 0) CHECK(ops.names == std::vector<std::string>{"add_scalar", "fused"});
    backward(y, torch::ones({9, 8}));
    results[k] = {y.data(), x.grad(), w.grad()};
  }
  for (size_t i = 0; i < 3; ++i) CHECK(results[0][i].equal(results[1][i]));
}

TEST_CASE("fused ops work under autocast and in recomputed functions", "[fused]") {
  torch::manual_seed(7);
  const Variable x = Variable::parameter(torch::randn({12, 8})),
                 low = Variable::parameter(torch::randn({12, 8}).to(at::kBFloat16));
  const auto f = [](const Variable& a, const Variable& b) { return exp(b * 0.5) * a + b; };
  std::vector<at::Tensor> results[3];
  for (const int k : {0, 1, 2}) {
    x.leaf().grad.reset();
    low.leaf().grad.reset();
    const Autocast autocast(at::kBFloat16);
    const auto run = [&](const Variable& a, const Variable& b) {
      return k == 0 ? f(a, b) : fused(f, a, b);
    };
    const Variable y = tanh(k == 2 ? recompute(run, x, low) : run(x, low));
    backward(y, torch::ones_like(y.data()));
    results[k] = {y.data(), x.grad(), low.grad()};
  }
  for (size_t i = 0; i < 3; ++i) {
    CHECK(has_bits_of(results[1][i], results[0][i]));
    CHECK(has_bits_of(results[2][i], results[0][i]));
  }
}

TEST_CASE("a function that is observed only in forward can be recomputed in backward", "[fused]") {
  torch::manual_seed(14);
  const at::Tensor data = torch::randn({9, 8});
  const Variable w = Variable::parameter(torch::randn({8})),
                 m = Variable::parameter(torch::randn({8, 8}));
  const at::Tensor mask = torch::randn({8}) > 0;

  for (const bool left : {false, true}) {
    INFO("left " << left);
    const auto f = [&](const Variable& v) {
      const Variable y = v * masked_fill(1.0 + w, mask, 0.5);
      return left ? matmul(y, m) : tanh(y);
    };

    at::Tensor results[2];
    for (const int k : {0, 1}) {
      const Variable x = Variable::parameter(data);
      w.leaf().grad.reset();
      Variable y;
      {
        const NamesOfOps ops;
        y = k == 0 ? recompute([&](const Variable& v) { return fused(f, v); }, x) : f(x);
      }
      backward(y, torch::ones({9, 8}));
      results[k] = torch::cat({x.grad(), w.grad().unsqueeze(0)});
    }
    CHECK(has_bits_of(results[0], results[1]));
  }
}

}  // namespace
