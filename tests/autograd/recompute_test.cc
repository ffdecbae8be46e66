// Tests of recomputation: the same graph and bitwise the same gradients as without recomputation,
// with less memory.
#include <thread>

#include "amp/amp.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/fp8.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/memory.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/convnet.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/mlp.h"
#include "nn/models/rnn.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

/// Counts the ops that run while this object exists.
struct OpsRun {
  int64_t n = 0;
  const ObserveOps observe{{.on_result = [this](const OpResult&) { ++n; }}};
};

Variable stretch(const Variable& x) { return tanh(exp(x * 0.5) * x); }

TEST_CASE("a recomputed function keeps no saved tensors until backward reaches it", "[recompute]") {
  const Variable x = Variable::parameter(torch::randn({64, 64}));
  const auto held = [&](bool again) {
    install_allocator();
    const MemoryScope scope(Memory::activations);
    const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
    const auto before = used();
    const OpsRun ops;
    const Variable y = again ? recompute(stretch, x) : stretch(x);
    CHECK(ops.n == 4);
    const auto kept = used() - before;
    y.backward(torch::ones({64, 64}));
    CHECK(ops.n == (again ? 8 : 4));
    CHECK(used() - before <= kept);
    return kept;
  };
  const auto plain = held(false), less = held(true);
  CHECK(less == 64 * 64 * 4);  // only the result is kept
  CHECK(plain ==
        2 * less);  // the exponential is also kept; other saved tensors are inputs or the result
}

TEST_CASE(
    "recomputed gradients are bitwise exact with several inputs, results and captured Variables",
    "[recompute]") {
  const Variable w = Variable::parameter(torch::randn({8, 8}));
  const at::Tensor a0 = torch::randn({8, 8}), b0 = torch::randn({8, 8});
  const auto run = [&](bool again, bool twice) {
    w.leaf().grad.reset();
    const Variable a = Variable::parameter(a0), b = Variable::parameter(b0);
    for (int i = 0; i < (twice ? 2 : 1); ++i) {
      const Variable outside = exp(b);  // a captured Variable, neither a parameter nor an argument
      const auto f = [w, outside, again](const Variable& p, const Variable& q) {
        const auto inner = [w](const Variable& z) { return tanh(matmul(z, w)); };
        const Variable h = again ? recompute(inner, p * outside) : inner(p * outside);
        return std::vector{h, sigmoid(h) * q, q};
      };
      const auto y = again ? recompute(f, a * 2.0, b) : f(a * 2.0, b);
      backward(sum(y[0] * y[0] + y[1]) + sum(y[2]));
    }
    return std::vector{a.grad(), b.grad(), w.grad()};
  };
  for (const bool twice : {false, true}) {
    const auto plain = run(false, twice), again = run(true, twice);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].equal(again[i]));
  }
}

TEST_CASE(
    "grad(), hooks, second derivatives, retained graphs and the error of a second backward work "
    "with recomputation",
    "[recompute]") {
  const Variable x = Variable::parameter(torch::randn({5}, at::kDouble));
  const auto cube = [](const Variable& v) { return v * v * v; };
  const Variable first = grad(sum(recompute(cube, x)), {x}, {}, /*create_graph=*/true)[0];
  CHECK(first.data().allclose(3 * x.data() * x.data()));
  CHECK(grad(sum(first), {x})[0].data().allclose(6 * x.data()));

  Variable inside;
  const Variable y = recompute(
      [&inside](const Variable& v) {
        const Variable h = exp(v);
        if (!inside.defined()) inside = h;  // keeps the value of the first run
        return h * h;
      },
      x);
  int seen = 0;
  inside.register_hook([&](const at::Tensor&) {
    ++seen;
    return at::Tensor();
  });
  const auto middle = grad(sum(y), {inside}, {}, false, /*retain=*/true)[0];
  CHECK(middle.data().allclose(2 * inside.data()));
  CHECK(grad(sum(y), {x}, {}, false, /*retain=*/true)[0].data().allclose(2 * inside.data() *
                                                                         inside.data()));
  CHECK(seen == 2);
  sum(y).backward();
  CHECK_THAT(error_of([&] { sum(y).backward(); }), ContainsSubstring("retain=true"));

  const NoGrad no_grad;
  const OpsRun ops;
  CHECK(!recompute(cube, x).requires_grad());
  CHECK(ops.n == 2);
}

TEST_CASE("recomputation refuses a function that does not repeat its ops, and changed inputs",
          "[recompute]") {
  const Variable x = Variable::parameter(torch::randn({5})),
                 w = Variable::parameter(torch::randn({5}));
  int calls = 0;
  const auto refusal = [&](auto f) {
    calls = 0;
    const Variable y = recompute(f, x);
    return error_of([&] { backward(sum(y)); });
  };
  CHECK_THAT(refusal([&](const Variable& v) { return calls++ == 0 ? exp(v) : tanh(v); }),
             ContainsSubstring("recompute: ") && ContainsSubstring("ran tanh") &&
                 ContainsSubstring("exp"));
  CHECK_THAT(refusal([&](const Variable& v) { return calls++ == 0 ? exp(v) : exp(exp(v)); }),
             ContainsSubstring("ran exp") && ContainsSubstring("nothing more"));
  CHECK_THAT(refusal([&](const Variable& v) { return calls++ == 0 ? exp(exp(v)) : exp(v); }),
             ContainsSubstring("ran nothing") && ContainsSubstring("exp"));
  CHECK_THAT(
      refusal([&](const Variable& v) { return sum(exp(slice(v, 0, 0, calls++ == 0 ? 3 : 4))); }),
      ContainsSubstring("recompute: slice") && ContainsSubstring("shapes"));
  // The documents of attention exist in the first run only.
  const Variable qkv = Variable::parameter(torch::randn({1, 4, 6}));
  const at::Tensor starts = torch::tensor({0, 0, 2, 2}).view({1, 4});
  int runs = 0;
  const Variable attended = recompute(
      [&](const Variable& v) { return attention(v, 1, runs++ == 0 ? starts : at::Tensor()); }, qkv);
  CHECK_THAT(error_of([&] { backward(sum(attended)); }),
             ContainsSubstring("recompute: ") && ContainsSubstring("SeparateDocuments"));

  const Variable y = recompute([w](const Variable& v) { return v * w; }, x);
  w.data().add_(1);
  CHECK_THAT(error_of([&] { backward(sum(y)); }), ContainsSubstring("recompute: mul: ") &&
                                                      ContainsSubstring("(float32[5])") &&
                                                      ContainsSubstring("in place"));

  // Change ids that an op keeps, as a reused buffer of batches does.
  const Variable table = Variable::parameter(torch::randn({4, 3}));
  const at::Tensor ids = torch::tensor({0, 1});
  const Variable rows = recompute([ids](const Variable& t) { return embedding(ids, t); }, table);
  ids.fill_(2);
  CHECK_THAT(error_of([&] { backward(sum(rows)); }),
             ContainsSubstring("int64[2]") && ContainsSubstring("in place"));
  // Changing a tensor that the function does not use is not an error.
  const Variable z = recompute([](const Variable& v) { return v * 2.0; }, x);
  w.data().add_(1);
  CHECK(error_of([&] { backward(sum(z)); }) == "");
}

TEST_CASE(
    "a long chain of recomputed parts runs on another thread and is destroyed without recursion",
    "[recompute]") {
  const Variable x = Variable::parameter(torch::ones({1}));
  Variable y = x;
  for (int i = 0; i < 100000; ++i) y = recompute([](const Variable& v) { return v * 1.0; }, y);
  std::thread([&] { backward(y); }).join();
  CHECK(x.grad().item<double>() == 1);
  for (int i = 0; i < 100000; ++i) y = recompute([](const Variable& v) { return v * v; }, y);
  y = {};
}

/// Runs forward and backward of a micro-batch in the same way as the trainer, and returns the loss.
template <class F>
at::Tensor run_micro_batch(F&& loss_of, at::ScalarType dtype, const StepRandom& random) {
  const TrainingStep step(random);
  Variable loss;
  {
    const Autocast autocast(dtype);
    loss = loss_of();
  }
  backward(loss);
  return loss.data();
}

/// Trains three steps of two micro-batches; returns losses, gradients, parameters and buffers.
template <class M, class Make, class Loss>
std::vector<at::Tensor> three_steps(Make&& make, Loss&& loss, at::ScalarType dtype, bool copies,
                                    RecomputePolicy policy, int64_t* blocks) {
  M model = make();
  initialize(model, Init::fan_in, 5);
  AmpConfig amp;
  amp.dtype = "fp8";
  amp.fp8_scaling = "delayed";
  amp.fp8_edge_blocks = 1;
  const auto params = parameters(model);
  if (dtype == at::kFloat8_e4m3fn) make_fp8_layers(params, amp);
  make_working_copies(params, dtype, copies, /*low_grad=*/false);
  const OptimConfig config;
  Optimizer optimizer(config, params);
  std::vector<at::Tensor> out;
  for (uint64_t step = 0; step < 3; ++step) {
    zero_grad(model);
    for (int64_t micro = 0; micro < 2; ++micro) {
      const RecomputeBlocks guard(policy, blocks);
      out.push_back(run_micro_batch([&] { return loss(model, micro); }, dtype,
                                    {.seed = 3, .step = step, .first_sample = 4 * micro}));
    }
    for (const auto& p : params) {
      out.push_back(p.parameter.grad().clone());
      if (const auto& fp8 = p.parameter.leaf().precision.fp8; fp8)
        out.push_back(fp8->history.clone());
    }
    optimizer.step(1e-2);
    advance_fp8(params);
  }
  for (const auto& p : params) out.push_back(p.parameter.data());
  for (const auto& b : buffers(model)) out.push_back(b.tensor);
  return out;
}

template <class M, class Make, class Loss>
void trains_the_same(const std::string& what, Make&& make, Loss&& loss,
                     std::vector<at::ScalarType> dtypes) {
  for (const auto dtype : dtypes) {
    for (const bool copies : {true, false}) {
      INFO(what << " in " << c10::toString(dtype) << (copies ? "" : ", weights cast at use"));
      int64_t blocks = 0;
      const auto plain = three_steps<M>(make, loss, dtype, copies, RecomputePolicy::none, &blocks);
      CHECK(blocks == 0);
      for (const auto policy :
           {RecomputePolicy(RecomputePolicy::blocks), RecomputePolicy(RecomputePolicy::sqrt),
            RecomputePolicy(RecomputePolicy::selective), RecomputePolicy(1, 1)}) {
        const auto again = three_steps<M>(make, loss, dtype, copies, policy, &blocks);
        CHECK(blocks > 0);
        REQUIRE(again.size() == plain.size());
        int64_t different = 0;
        for (size_t i = 0; i < plain.size(); ++i) different += plain[i].equal(again[i]) ? 0 : 1;
        CHECK(different == 0);
      }
      if (dtype == at::kFloat) break;  // float32 has no working copies
    }
  }
}

TEST_CASE(
    "every kind of model trains bitwise the same under every policy in each precision, with "
    "dropout and accumulation",
    "[recompute]") {
  const std::vector<at::ScalarType> dtypes{at::kFloat, at::kBFloat16, at::kHalf};
  const at::Tensor ids = torch::randint(11, {2, 4, 8}), targets = torch::randint(11, {2, 4, 8});
  const at::Tensor images = torch::randn({2, 4, 2, 8, 8}), labels = torch::randint(3, {2, 4});
  const auto language = [&](const auto& model, int64_t micro) {
    return head_loss(model, ids[micro], targets[micro], 64);
  };
  const auto classes = [&](const auto& model, int64_t micro) {
    return cross_entropy(model(Variable(images[micro])), labels[micro], 8);
  };

  GPTConfig g;
  g.n_layer = 5;
  g.n_head = 2;
  g.n_embd = 16;
  g.block_size = 8;
  g.vocab_size = 11;
  g.dropout = 0.2;
  auto with_fp8 = dtypes;
  with_fp8.push_back(at::kFloat8_e4m3fn);
  trains_the_same<GPT>("gpt", [&] { return GPT(g); }, language, with_fp8);

  LlamaConfig l;
  l.n_layer = 3;
  l.n_head = 4;
  l.n_kv_head = 2;
  l.n_embd = 16;
  l.block_size = 8;
  l.vocab_size = 11;
  l.dropout = 0.2;
  l.qkv_bias = l.qk_norm = true;
  trains_the_same<Llama>("llama", [&] { return Llama(l); }, language, with_fp8);

  for (const std::string cell : {"lstm", "gru"}) {
    RNNConfig r;
    r.cell = cell;
    r.n_layer = 3;
    r.n_hidden = r.n_embd = 8;
    r.block_size = 8;
    r.vocab_size = 11;
    r.dropout = 0.2;
    trains_the_same<RNN>(cell, [&] { return RNN(r); }, language, dtypes);
  }

  for (const std::string norm : {"batch", "layer"}) {
    MLPConfig m;
    m.n_layer = 5;
    m.n_hidden = 16;
    m.norm = norm;
    m.dropout = 0.2;
    trains_the_same<MLP>("mlp", [&] { return MLP(m, {{2, 8, 8}, 3}); }, classes, dtypes);
  }

  ConvNetConfig c;
  c.n_stage = 2;
  c.n_block = 2;
  c.n_channel = 4;
  c.dropout = 0.2;
  trains_the_same<ConvNet>("convnet", [&] { return ConvNet(c, {{2, 8, 8}, 3}); }, classes, dtypes);
}

TEST_CASE("a recomputed function can't differentiate through its own ops", "[recompute]") {
  const Variable x = Variable::parameter(torch::randn({5}));
  const auto gradient = [](const Variable& v) { return grad(sum(v * v), {v})[0] * v; };
  CHECK_THAT(error_of([&] { recompute(gradient, x); }),
             ContainsSubstring("recompute: ") && ContainsSubstring("grad()"));
  Selection selection;
  CHECK_THAT(error_of([&] { recompute_selectively(selection, gradient, x); }),
             ContainsSubstring("recompute: ") && ContainsSubstring("grad()"));

  // The function may differentiate a graph from outside. Without recomputation, it may also
  // differentiate through its own ops.
  const Variable y = sum(x * x);
  const auto outside = [&](const Variable& v) { return v * grad(y, {x}, {}, false, true)[0]; };
  const Variable z = recompute(outside, x);
  CHECK(torch::equal(z.data(), 2 * x.data() * x.data()));
  CHECK(torch::equal(gradient(x).data(), z.data()));
}

TEST_CASE("a recomputed function may compute masks from its input", "[recompute]") {
  torch::manual_seed(2);
  const Variable x = Variable::parameter(torch::randn({3, 4}));
  const auto part = [](const Variable& v) {
    const at::Tensor row = v.data()[0].gt(0);
    const at::Tensor copied = row.expand({3, 4}).contiguous(), inverse = copied.logical_not();
    return masked_fill(masked_fill(v, copied, 2) * v, inverse.logical_or(copied.eq(2)), 3) * v;
  };
  backward(sum(part(x)));
  const at::Tensor wanted = x.grad().clone();
  x.leaf().grad.reset();
  backward(sum(recompute(part, x)));
  CHECK(x.grad().equal(wanted));
}

TEST_CASE("parameters may be frozen between the forward pass and the recomputation",
          "[recompute]") {
  torch::manual_seed(3);
  using Part = std::function<Variable(const Variable&, const Variable&)>;
  const std::vector<std::pair<std::string, Part>> parts{
      {"mul", [](const Variable& v, const Variable& w) { return tanh(v) * w; }},
      {"div", [](const Variable& v, const Variable& w) { return w / (v * v + 1.0); }},
      {"matmul", [](const Variable& v, const Variable& w) { return matmul(tanh(v), w); }},
      {"linear", [](const Variable& v, const Variable& w) { return linear(tanh(v), w); }},
      {"linear_gelu", [](const Variable& v, const Variable& w) { return linear_gelu(v, w); }},
      {"conv2d",
       [](const Variable& v, const Variable& w) {
         const Variable image = reshape(tanh(v), {1, 1, 8, 8}), kernel = reshape(w, {1, 1, 8, 8});
         return conv2d(image, kernel, {}, {});
       }},
  };

  for (const auto& [name, part] : parts) {
    for (const std::string kind : {"plain", "blocks", "selective"}) {
      for (const bool is_data : {false, true}) {
        INFO(name << ", " << kind << (is_data ? ", of data" : ""));

        const at::Tensor values = torch::ones({8, 8}) * 0.5;
        const Variable x = is_data ? Variable(values) : Variable::parameter(values),
                       other = Variable::parameter(values.clone());
        Variable w = Variable::parameter(values.clone());
        const auto run = [part = part, w, other](const Variable& v) {
          return part(v, w) * sum(other);
        };
        Selection selection{.share = 0};
        const Variable y = kind == "plain"    ? run(x)
                           : kind == "blocks" ? recompute(run, x)
                                              : recompute_selectively(selection, run, x);

        w.requires_grad_(false);
        backward(sum(y));
        CHECK(!w.grad().defined());
        CHECK(other.grad().equal(torch::full({8, 8}, sum(part(x, w)).data().item<float>())));
        if (!is_data) CHECK(x.grad().defined());
      }
    }
  }
}

TEST_CASE("groups have 1 block under `blocks` and ceil(sqrt(n)) blocks under `sqrt`",
          "[recompute]") {
  CHECK(blocks_per_group(RecomputePolicy::blocks, 64) == 1);
  for (const auto& [n, group] :
       {std::pair<size_t, size_t>{0, 1}, {1, 1}, {4, 2}, {5, 3}, {16, 4}, {64, 8}, {65, 9}})
    CHECK(blocks_per_group(RecomputePolicy::sqrt, n) == group);
  // Each block runs once in forward, and in backward once under `blocks` and twice under `sqrt`.
  const Variable x = Variable::parameter(torch::ones({2}));
  for (const auto policy : {RecomputePolicy::blocks, RecomputePolicy::sqrt}) {
    std::vector<size_t> order;
    const RecomputeBlocks guard(policy);
    const Variable y = run_blocks(5, x, [&order](size_t i, const Variable& v) {
      order.push_back(i);
      return v * v;
    });
    backward(sum(y));
    CHECK(order == (policy == RecomputePolicy::blocks
                        ? std::vector<size_t>{0, 1, 2, 3, 4, 4, 3, 2, 1, 0}
                        : std::vector<size_t>{0, 1, 2, 3, 4, 3, 4, 4, 3, 0, 1, 2, 2, 1, 0}));
    CHECK(x.grad().equal(torch::full({2}, 32.0)));
    x.leaf().grad.reset();
  }
}

TEST_CASE("a range of blocks is recomputed, and the other blocks are not", "[recompute]") {
  const Variable x = Variable::parameter(torch::ones({2}));
  std::vector<size_t> order;
  int64_t blocks = 0;
  const RecomputeBlocks guard(*recompute_policy("blocks.1-2"), &blocks);
  const Variable y = run_blocks(5, x, [&order](size_t i, const Variable& v) {
    order.push_back(i);
    return v * v;
  });
  CHECK(blocks == 2);
  backward(sum(y));
  CHECK(order == std::vector<size_t>{0, 1, 2, 3, 4, 2, 1});
  CHECK(x.grad().equal(torch::full({2}, 32.0)));

  for (const char* wrong : {"all", "blocks.", "blocks.3", "blocks.3-", "blocks.-3", "blocks.3-1",
                            "blocks.1-2x", "blocks.1-99999999999999999999", "blocks.a-b", ""})
    CHECK(!recompute_policy(wrong).has_value());
}

}  // namespace
