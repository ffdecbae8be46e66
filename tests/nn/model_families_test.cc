// Tests of options of Llama families: windows of attention, capped scores and logits, and the
// config keys that select blocks. other_models_test.cc and the op table compare values with
// LibTorch.
#include "autograd/engine.h"
#include "autograd/ops/attention.h"
#include "autograd/recompute.h"
#include "core/kernels/isa.h"
#include "nn/layers/cache.h"
#include "nn/layers/documents.h"
#include "nn/models/llama.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

LlamaConfig family_config(int64_t layers, int64_t window, int64_t context) {
  LlamaConfig c;
  c.n_layer = layers;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.n_embd = 32;
  c.n_inner = 24;
  c.block_size = context;
  c.vocab_size = 31;
  c.sliding_window = window;
  return c;
}

Llama random_family(const LlamaConfig& c, uint64_t seed = 5) {
  torch::manual_seed(seed);
  Llama model(c);
  for (const auto& p : parameters(model))
    p.parameter.data().copy_(torch::randn(p.parameter.sizes()) * 0.3);
  return model;
}

/// Returns the first and the last position whose logits depend on the token at `changed`.
std::pair<int64_t, int64_t> reach(const Llama& model, int64_t time, int64_t changed) {
  torch::manual_seed(9);
  const at::Tensor ids = torch::randint(30, {1, time});
  at::Tensor other = ids.clone();
  other[0][changed] = 30;
  const NoGrad no_grad;
  const at::Tensor differs =
      model(ids).data().ne(model(other).data()).any(-1)[0].nonzero().flatten();
  return {differs[0].item<int64_t>(), differs[-1].item<int64_t>()};
}

TEST_CASE("a token reaches no further than the windows of all blocks together",
          "[model_families]") {
  for (const int64_t layers : {1, 2, 3}) {
    for (const int64_t window : {1, 2, 5, 40, 70}) {
      INFO(layers << " blocks, window of " << window);
      const int64_t time = 300;
      const Llama model = random_family(family_config(layers, window, time));
      for (const int64_t changed : {0, 63, 64, 100}) {
        const auto [first, last] = reach(model, time, changed);
        CHECK(first == changed);
        CHECK(last == std::min(time - 1, changed + layers * (window - 1)));
      }
    }
  }

  // If no block has a window, or if only one block has none, all later positions differ.
  CHECK(reach(random_family(family_config(2, 0, 300)), 300, 7).second == 299);
  LlamaConfig c = family_config(3, 5, 300);
  c.window_layers = "110";
  CHECK(reach(random_family(c), 300, 7).second == 299);
}

TEST_CASE("a window of at least the context changes no bits", "[model_families]") {
  const LlamaConfig none = family_config(2, 0, 130);
  const at::Tensor ids = torch::randint(31, {2, 130});
  const at::Tensor wanted = random_family(none)(ids).data();
  for (const int64_t window : {130, 131, 1000000})
    CHECK(random_family(family_config(2, window, 130))(ids).data().equal(wanted));
  CHECK(!random_family(family_config(2, 129, 130))(ids).data().equal(wanted));
}

/// Returns attention composed of plain ops in float64, with a mask for windows and documents.
at::Tensor masked_attention(const std::vector<at::Tensor>& qkv, int64_t heads, int64_t kv_heads,
                            const at::Tensor& starts, const ScoreOptions& o) {
  const auto split = [&](const at::Tensor& x, int64_t n) {
    return x.to(at::kDouble)
        .view({x.size(0), x.size(1), n, x.size(2) / n})
        .transpose(1, 2)
        .repeat_interleave(heads / n, 1);
  };
  const int64_t time = qkv[0].size(1), keys = qkv[1].size(1);
  const at::Tensor q = split(qkv[0], heads);
  at::Tensor s = q.matmul(split(qkv[1], kv_heads).transpose(-2, -1)) / std::sqrt(q.size(3));
  if (o.softcap > 0) s = o.softcap * torch::tanh(s / o.softcap);
  const at::Tensor own = torch::arange(keys - time, keys).view({1, 1, time, 1}),
                   other = torch::arange(keys).view({1, 1, 1, keys});
  at::Tensor hidden = (other > own).logical_or(other <= own - o.window);
  if (starts.defined()) hidden = hidden.logical_or(other < starts.view({-1, 1, time, 1}));
  const at::Tensor y = s.masked_fill(hidden, -INFINITY).softmax(-1).matmul(split(qkv[2], kv_heads));
  return y.transpose(1, 2).reshape(qkv[0].sizes());
}

TEST_CASE("windows in documents agree with a mask on every instruction set, also with a key cache",
          "[model_families]") {
  torch::manual_seed(3);
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    if (isa > machine_isa()) continue;
    use_isa(isa);
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [time, keys, window] : std::vector<std::array<int64_t, 3>>{{200, 200, 70},
                                                                                  {200, 200, 3},
                                                                                  {1, 200, 70},
                                                                                  {1, 200, 5},
                                                                                  {1, 65, 1},
                                                                                  {30, 200, 100},
                                                                                  {3, 130, 65}}) {
        INFO(isa_name(isa) << ", " << dtype << ", " << time << " of " << keys << ", " << window);

        std::vector<at::Tensor> qkv{torch::randn({2, time, 32}), torch::randn({2, keys, 16}),
                                    torch::randn({2, keys, 16})};
        for (at::Tensor& t : qkv) t = t.to(dtype);

        // If there are fewer queries than keys, as with a cache, there are no document starts.
        at::Tensor starts;  // documents of 45 tokens
        if (time == keys)
          starts = torch::arange(time).div(45, "floor").mul(45).expand({2, time}).contiguous();

        for (const double softcap : {0.0, 0.8}) {
          const ScoreOptions o{.window = window, .softcap = softcap};
          const at::Tensor got =
              attention(Variable(qkv[0]), Variable(qkv[1]), Variable(qkv[2]), 4, 2, starts, {}, o)
                  .data();
          const at::Tensor wanted = masked_attention(qkv, 4, 2, starts, o);
          const double apart = (got.to(at::kDouble) - wanted).abs().max().item<double>();
          // The values are about 1. Their rounding errors are up to 6e-8 in float32 and 4e-3 in
          // bfloat16.
          CHECK(apart < (dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 3e-6 : 2e-2));
        }
      }
    }
  }
  use_isa(machine_isa());
}

TEST_CASE("capped scores keep NaN, and invalid options are refused", "[model_families]") {
  const at::Tensor q = torch::randn({1, 70, 16});
  at::Tensor bad = q.clone();
  bad[0][3][2] = std::nan("");
  const auto run = [&](const at::Tensor& query, const ScoreOptions& o) {
    return attention(Variable(query), Variable(q), Variable(q), 2, 2, {}, {}, o).data();
  };
  const at::Tensor y = run(bad, {.softcap = 5});
  CHECK(y[0][3].slice(0, 0, 8).isnan().all().item<bool>());
  CHECK(!y[0][4].isnan().any().item<bool>());
  CHECK(run(q, {.softcap = 1e6}).allclose(run(q, {}), 1e-5, 1e-6));  // a cap without effect

  for (const ScoreOptions& o : {ScoreOptions{.window = -1}, ScoreOptions{.scale = -1},
                                ScoreOptions{.softcap = -1}, ScoreOptions{.softcap = INFINITY}})
    CHECK_THAT(error_of([&] { run(q, o); }),
               ContainsSubstring("attention(") && ContainsSubstring("window, scale and softcap") &&
                   ContainsSubstring(str("not ", o.window, ", ", o.scale, " and ", o.softcap)));
}

TEST_CASE("recomputing blocks with windows, caps and norms changes no bit of the gradients",
          "[model_families]") {
  LlamaConfig c = family_config(4, 5, 70);
  c.window_layers = "10";
  c.rope_layers = "110";
  c.rope_local_theta = 50;
  c.norm_position = "both";
  c.activation = "gelu";
  c.attention_softcap = 3;
  c.logit_softcap = 4;
  c.dropout = 0.1;

  const Llama model = random_family(c);
  const at::Tensor ids = torch::randint(31, {2, 70}), targets = torch::randint(31, {2, 70});

  const auto gradients = [&](RecomputePolicy policy) {
    zero_grad(model);
    const TrainingStep step({.seed = 1, .step = 2});
    const RecomputeBlocks recompute(policy);
    const Variable loss = head_loss(model, ids, targets, 140);
    backward(loss);
    std::vector<at::Tensor> all{loss.data()};
    for (const auto& p : parameters(model)) all.push_back(p.parameter.grad().clone());
    return all;
  };

  // Dropout is active, so recomputation must also draw the same dropout masks.
  const auto kept = gradients(RecomputePolicy::none);
  for (const auto policy : {RecomputePolicy::blocks, RecomputePolicy::sqrt}) {
    const auto again = gradients(policy);
    for (size_t i = 0; i < kept.size(); ++i) CHECK(again[i].equal(kept[i]));
  }
}

TEST_CASE("the loss of capped logits in chunks of rows agrees with the loss of all rows at a time",
          "[model_families]") {
  torch::manual_seed(4);
  // The vocabulary is so large that a chunk holds only 83 of the 200 rows.
  const int64_t rows = 200, vocabulary = 400000;
  const at::Tensor x = torch::randn({rows, 4}), w = torch::randn({vocabulary, 4});
  at::Tensor targets = torch::randint(vocabulary, {rows});
  targets[7] = -100;
  const auto run = [&](const auto& loss_of) {
    const Variable px = Variable::parameter(x.clone()), pw = Variable::parameter(w.clone());
    const Variable loss = loss_of(px, pw);
    backward(loss);
    return std::vector{loss.data(), px.grad(), pw.grad()};
  };
  const auto wanted = run([&](const Variable& px, const Variable& pw) {
    return cross_entropy(tanh(linear(px, pw) / 2.5) * 2.5, targets, 199);
  });
  for (const double divisor : {199.0, 0.0}) {
    const auto got = run([&](const Variable& px, const Variable& pw) {
      return head_cross_entropy(px, pw, 2.5, targets, divisor);
    });
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i].allclose(wanted[i], 1e-4, 1e-7));
  }
}

TEST_CASE("config keys of blocks that have no effect or wrong values are refused",
          "[model_families]") {
  const auto refusal = [](const std::function<void(LlamaConfig&)>& change) {
    LlamaConfig c;
    change(c);
    const auto fault = Llama::check(c);
    return fault ? fault->what : "";
  };
  const auto refused = [&](const std::function<void(LlamaConfig&)>& change,
                           const std::vector<std::string>& facts) {
    for (const std::string& fact : facts) CHECK_THAT(refusal(change), ContainsSubstring(fact));
  };
  refused([](LlamaConfig& c) { c.window_layers = "10"; },
          {"model.window_layers = \"10\"", "model.sliding_window"});
  refused(
      [](LlamaConfig& c) {
        c.sliding_window = 4;
        c.window_layers = "00";
      },
      {"model.sliding_window = 4", "model.window_layers = \"00\""});
  refused(
      [](LlamaConfig& c) {
        c.sliding_window = 4;
        c.window_layers = "";
      },
      {"model.window_layers = \"\"", "digits 1 and 0"});
  refused([](LlamaConfig& c) { c.rope_layers = "12"; },
          {"model.rope_layers = \"12\"", "digits 1 and 0"});
  refused([](LlamaConfig& c) { c.rope_local_theta = 100; },
          {"model.rope_local_theta = 100", "model.sliding_window"});
  refused(
      [](LlamaConfig& c) {
        c.sliding_window = 4;
        c.rope_local_theta = 0.5;
      },
      {"model.rope_local_theta = 0.5", "at least 1"});
  refused([](LlamaConfig& c) { c.qk_norm_over = "projection"; },
          {"model.qk_norm_over = \"projection\"", "model.qk_norm = true"});

  // Config keys that have an effect are accepted.
  CHECK(refusal([](LlamaConfig& c) {
          c.sliding_window = 4;
          c.window_layers = "10";
          c.rope_local_theta = 100;
          c.rope_layers = "0";
          c.qk_norm = true;
          c.qk_norm_over = "projection";
        }) == "");
}

}  // namespace
