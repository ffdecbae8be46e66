// Tests of observing modules while they run: named shapes, forward hooks, and the origin of values
// that are not finite.
#include <chrono>
#include <set>
#include <string>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/fused.h"
#include "autograd/observer.h"
#include "autograd/recompute.h"
#include "nn/anomaly.h"
#include "nn/hooks.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/module_call.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

/// A module whose forward or backward pass gives infinities if the test sets a fault.
struct Inner {
  Linear up{4, 4, true};
  double forward_fault = 0, backward_fault = 0;
  Variable operator()(const Variable& x) const {
    ModuleCall call(*this);
    call.input(x, "B C");
    Variable y = up(x);
    if (forward_fault > 0) y = log(y * 0.0) * forward_fault;  // log(0)
    if (backward_fault > 0)
      y = y + sqrt(relu(y) * 0.0) * backward_fault;  // 0 forward; 1 / sqrt(0) backward
    return call.result(y, "B C");
  }
  void visit(Visit& v) { v("up", up); }
};
struct Outer {
  std::vector<Inner> parts = std::vector<Inner>(3);
  Linear head{4, 2, true};
  Variable operator()(const Variable& x) const {
    ModuleCall call(*this);
    return call.result(head(run_blocks(parts, x)), "B O");
  }
  void visit(Visit& v) {
    v.blocks("parts", parts);
    v("head", head);
  }
};
Outer make_outer() {
  Outer model;
  initialize(model, Init::xavier_normal, 1);
  return model;
}

/// Checks that a message contains each of the facts.
void check_names(const std::string& message, const std::vector<std::string>& facts) {
  for (const std::string& fact : facts) CHECK_THAT(message, ContainsSubstring(fact));
}

TEST_CASE(
    "dims with the same name must have the same size in a call, and the error names the path, both "
    "shapes and the dim",
    "[module_hooks]") {
  const auto ones = [](std::vector<int64_t> sizes) { return Variable(torch::ones(sizes)); };
  TransformerOptions o;
  o.n_embd = 8;
  o.n_head = 2;
  const TransformerDecoder model(2, o);
  const auto refusal = [&](const Variable& x, const Variable& memory) {
    return error_of([&] { model(x, memory); });
  };
  CHECK(refusal(ones({2, 3, 8}), ones({2, 5, 8})) == "");
  check_names(refusal(ones({2, 3, 8}), ones({3, 5, 8})),
              {"TransformerDecoder: ", "memory of shape [B=2,S,C=8]", "float32[3,5,8]", "B is 3",
               "input float32[2,3,8]"});
  check_names(refusal(ones({2, 3, 9}), ones({2, 5, 9})),
              {"layers.0 (TransformerDecoderLayer): ", "input of shape [B,T,C=8]", "float32[2,3,9]",
               "C is 9", "8 in the module"});
  check_names(
      error_of([&] {
        model(ones({2, 3, 8}), ones({2, 5, 8}), {.hidden = torch::zeros({3, 4}, at::kBool)});
      }),
      {"layers.0.self_attn (MultiHeadAttention): ", "hidden of shape [T=3,S=3]", "bool[3,4]",
       "S is 4", "key float32[2,3,8]"});
  check_names(error_of([&] {
                model(ones({2, 3, 8}), ones({2, 5, 8}), {.causal = true},
                      {.padding = torch::zeros({2, 3})});
              }),
              {"layers.0.multihead_attn (MultiHeadAttention): ", "padding of shape [B=2,S=5]"});
  check_names(error_of([&] { LSTM(3, 4)(ones({2, 5, 3}), {ones({1, 3, 4}), {}}); }),
              {"LSTM: ", "state h of shape [L=1,B=2,H=4]", "float32[1,3,4]", "B is 3",
               "input float32[2,5,3]"});
  check_names(error_of([&] { Linear(3, 4, true)(ones({5})); }),
              {"Linear: ", "input of shape [...,I=3]", "float32[5]", "I is 5", "3 in the module"});
  check_names(error_of([&] { Conv1d(3, 4, 2)(ones({5, 3})); }),
              {"Conv1d: ", "[B,C=3,L]", "float32[5,3]", "2 dims"});

  struct Square {  // uses a dim's letter twice
    Variable operator()(const Variable& x) const {
      ModuleCall call(*this);
      call.input(x, "N N");
      return call.result(slice(x, 0, 0, 1), "N N");
    }
    void visit(Visit&) {}
  };
  check_names(error_of([&] { Square()(ones({2, 3})); }),
              {"Square: ", "float32[2,3]", "N is 2", "its dims"});
  check_names(
      error_of([&] { Square()(ones({2, 2})); }),
      {"Square: ", "result of shape [N=2,N=2]", "float32[1,2]", "N is 1", "input float32[2,2]"});

  // Paths start at the outermost module, even if a child has the same address as its parent.
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 8;
  c.block_size = 4;
  c.vocab_size = 7;
  GPT gpt(c);
  gpt.blocks[1].mlp.down = Linear(32, 9, true);
  check_names(error_of([&] { gpt(torch::zeros({1, 4}, at::kLong)); }),
              {"blocks.1.mlp.down (Linear): ", "residual of shape [...,O=9]", "float32[1,4,8]"});
}

TEST_CASE("forward hooks see and replace what modules return, by path, innermost first",
          "[module_hooks]") {
  Outer model = make_outer();
  const Variable x(torch::ones({2, 4}));
  const at::Tensor plain = model(x).data();
  std::vector<std::string> seen;

  {
    const ForwardHook all(model, "parts.*", [&](const std::string& path, const Variable& y) {
      seen.push_back(path);
      CHECK(y.sizes() == at::IntArrayRef({2, 4}));
      return Variable();
    });
    CHECK(model(x).data().equal(plain));
    CHECK(seen == std::vector<std::string>{"parts.0.up", "parts.0", "parts.1.up", "parts.1",
                                           "parts.2.up", "parts.2"});

    const ForwardHook ablate(model, "parts.1",
                             [](const std::string&, const Variable& y) { return y * 0.0; });
    const at::Tensor ablated = model(x).data();
    CHECK(!ablated.equal(plain));

    // If the weights of parts.1 are zero, it returns zeros, as it does with the hook `ablate`.
    model.parts[1].up.weight.data().zero_();
    model.parts[1].up.bias.data().zero_();
  }
  const at::Tensor zeroed = model(x).data();

  model = make_outer();
  {
    const ForwardHook ablate(model, "parts.1",
                             [](const std::string&, const Variable& y) { return y * 0.0; });
    CHECK(model(x).data().equal(zeroed));
    backward(sum(model(x)));
    CHECK(model.parts[1].up.weight.grad().eq(0).all().item<bool>());
  }

  // The hooks end with their scopes.
  CHECK(seen.size() == 12);
  CHECK(model(x).data().equal(plain));
  CHECK_THAT(error_of([&] { ForwardHook(model, "part.*", {}); }),
             ContainsSubstring("no module") && ContainsSubstring("part.*"));
}

TEST_CASE("an anomaly's error names the first op, forward or backward, the path, shapes and values",
          "[module_hooks]") {
  const Variable x(torch::ones({2, 4}));
  for (const auto policy : {RecomputePolicy::none, RecomputePolicy::blocks}) {
    const RecomputeBlocks recompute(policy);

    const auto refusal = [&](auto&& fault, const Variable& in) {
      Outer model = make_outer();
      fault(model);
      return error_of([&] {
        const DetectAnomaly watch;
        backward(sum(model(in)));
      });
    };

    CHECK(refusal([](Outer&) {}, x) == "");
    // The error describes the result of the op, and the values of its inputs.
    check_names(refusal([](Outer& m) { m.parts[1].forward_fault = 1; }, x),
                {"anomaly: log in parts.1 (Inner) produced",
                 "(float32[2,4], 0 NaN and 8 infinite of 8)", ": float32[2,4] from "});
    // The error describes the gradient that is not finite, the gradients that the op received, and
    // the op's inputs in the forward pass.
    check_names(refusal([](Outer& m) { m.parts[2].backward_fault = 1; }, x),
                {"anomaly: the backward of sqrt in parts.2 (Inner)", "input 0 (float32[2,4], ",
                 "gradients: float32[2,4] from ", "float32[2,4] from 0 to 0"});

    // The check also finds NaN that existed before the forward pass, in a parameter or in the
    // input.
    check_names(refusal([](Outer& m) { m.head.weight.data()[1][2] = NAN; }, x),
                {"anomaly: linear in head (Linear)", "parameter",
                 "float32[2,4], 1 NaN and 0 infinite of 8"});
    check_names(refusal([](Outer&) {}, Variable(torch::full({2, 4}, NAN))),
                {"anomaly: linear in parts.0.up (Linear)", "given data",
                 "float32[2,4], 8 NaN and 0 infinite of 8"});
  }

  {  // infinities in constants and masks are intended
    const DetectAnomaly watch;
    const Variable w = Variable::parameter(torch::ones({3}));
    const Variable mask(torch::tensor({0.0F, -INFINITY, 0.0F}));
    backward(sum(softmax(w + mask, 0) *
                 softmax(masked_fill(w, torch::tensor({true, false, false}), -INFINITY), 0)));
    const at::Tensor first = torch::tensor({true, false, false});
    backward(sum(softmax(pad(w, {1, 0}, PadMode::constant, -INFINITY), 0)));
    backward(sum(softmax(
        fused([&](const Variable& v) { return masked_fill(v * 2.0, first, -INFINITY); }, w), 0)));
    // A NaN is never intended.
    CHECK_THAT(error_of([&] { fused([](const Variable& v) { return log(v - 2.0) * 0.5; }, w); }),
               ContainsSubstring("anomaly: fused"));
    Variable filled = w * 2.0;
    masked_fill_(filled, first, -INFINITY);
    backward(sum(softmax(filled, 0)));
  }

  // If the caller passes an infinite gradient, it is found only if the backward pass is checked.
  const Variable w = Variable::parameter(torch::ones({3}));
  CHECK_THAT(error_of([&] {
               const DetectAnomaly watch;
               backward(sum(w * 2.0), torch::full({}, INFINITY));
             }),
             ContainsSubstring("anomaly: ") && ContainsSubstring("gradient") &&
                 ContainsSubstring("result of sum "));
  const DetectAnomaly forward_alone(DetectAnomaly::Options{.backward = false});
  CHECK(error_of([&] { backward(sum(w * 2.0), torch::full({}, INFINITY)); }) == "");
}

/// Checks that hooks of all layers with parameters are called, except the layers that are computed
/// together with others.
template <class M>
void check_all_layers_are_called(M& model, const std::set<std::string>& joined) {
  std::set<std::string> called;
  const ForwardHook all(model, "*", [&](const std::string& path, const Variable&) {
    called.insert(path);
    return Variable();
  });
  model(at::zeros({1, 4}, at::kLong));

  for (const NamedParameter& p : parameters(model)) {
    const size_t dot = p.path.rfind('.');
    const std::string layer = p.path.substr(0, dot);
    const bool is_joined = joined.contains(layer.substr(layer.rfind('.') + 1));
    INFO(layer);
    CHECK(called.contains(layer) != is_joined);
  }
}

TEST_CASE("hooks of every layer of a GPT and of a Llama are called", "[module_hooks]") {
  GPT gpt({.n_layer = 2, .n_head = 2, .n_embd = 8, .block_size = 4, .vocab_size = 5});
  check_all_layers_are_called(gpt, {"positions", "up"});
  Llama llama({.n_layer = 2,
               .n_head = 2,
               .n_kv_head = 1,
               .n_embd = 8,
               .block_size = 4,
               .vocab_size = 5,
               .qk_norm = true,
               .tie_weights = false});
  check_all_layers_are_called(llama, {"q", "k", "v", "gate", "up", "head"});
}

TEST_CASE("all observers are called until destroyed, the innermost first", "[module_hooks]") {
  const Variable w = Variable::parameter(torch::ones({2}));
  std::vector<std::string> calls;
  const auto observer = [&](const std::string& name) {
    return OpObserver{
        .on_result = [&calls, name](const OpResult& r) { calls.push_back(name + r.name); },
        .on_backward =
            [&calls, name](const BackwardResult& r) {
              calls.push_back(name + "d" + r.node.name());
            },
    };
  };
  {
    const ObserveOps outer(observer("outer "));
    const DetectAnomaly watch;
    const ObserveOps inner(observer("inner "));
    backward(sum(exp(w)));
  }
  backward(sum(w));
  CHECK(calls == std::vector<std::string>{"inner exp", "outer exp", "inner sum", "outer sum",
                                          "inner dsum", "outer dsum", "inner dexp", "outer dexp"});
}

TEST_CASE("an anomaly guard changes no bit of results and gradients", "[module_hooks]") {
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 16;
  c.block_size = 8;
  c.vocab_size = 11;
  c.dropout = 0.1;
  const at::Tensor ids = torch::randint(11, {2, 8}), targets = torch::randint(11, {2, 8});

  const auto run = [&](bool watched) {
    GPT model(c);
    initialize(model, Init::gpt2, 1, 2);
    std::optional<DetectAnomaly> watch;
    if (watched) watch.emplace();

    const TrainingStep step({.seed = 1});
    std::vector<at::Tensor> out;
    for (int micro = 0; micro < 2; ++micro) {
      const Variable loss = head_loss(model, ids, targets, 32);
      backward(loss);
      out.push_back(loss.data());
    }
    for (const auto& p : parameters(model)) out.push_back(p.parameter.grad());
    return out;
  };

  const auto plain = run(false), watched = run(true);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].equal(watched[i]));
}

TEST_CASE("a ModuleCall with two checked tensors takes less than 100 microseconds",
          "[module_hooks]") {
  // The bound detects only a wrong order of magnitude. A training step takes milliseconds. A GPT
  // makes 10 module calls per block in a step.
  const Linear layer(64, 64, true);
  const Variable x(torch::ones({2, 32, 64}));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20000; ++i) {
    ModuleCall call(layer, {{'I', 64}, {'O', 64}});
    call.input(x, "B T I");
    call.result(x, "B T O");
  }
  const double ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
      20000;
  WARN("a ModuleCall with two checked tensors takes " << ns << " ns");
  CHECK(ns < 1e5);
}

}  // namespace
