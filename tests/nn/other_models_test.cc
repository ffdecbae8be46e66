// Compares the models llama, mlp, convnet and rnn with the same models built from ATen's functions.
// Compares the models' formulas for FLOPs and parameters with counted numbers.
#include <algorithm>
#include <functional>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "core/mode.h"
#include "nn/init.h"
#include "nn/models/convnet.h"
#include "nn/models/llama.h"
#include "nn/models/mlp.h"
#include "nn/models/rnn.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using Leaves = std::map<std::string, at::Tensor>;

/// Sets random float64 parameters, so that every term matters. Returns copies of the parameters, by
/// path, for LibTorch's autograd.
Leaves randomise(const ModuleRef& model) {
  move_to(model, at::kCPU, at::kDouble);
  Leaves out;
  for (const auto& p : parameters(model)) {
    p.parameter.data().copy_(torch::randn(p.parameter.sizes(), at::kDouble) * 0.3);
    out[p.path] = p.parameter.data().clone().requires_grad_();
  }
  return out;
}
void check_near(const std::string& what, const at::Tensor& a, const at::Tensor& b) {
  INFO(what);
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  CHECK((a - b).abs().max().item<double>() <= 1e-9 * std::max(1.0, b.abs().max().item<double>()));
}
void check_against(const ModuleRef& model, const Leaves& w, const Variable& y,
                   const at::Tensor& wanted) {
  check_near("output", y.data(), wanted.detach());
  const at::Tensor dy = torch::randn_like(wanted);
  backward(y, dy);
  wanted.backward(dy);
  for (const auto& p : parameters(model))
    check_near(p.path, p.parameter.grad(), w.at(p.path).grad());
}

TEST_CASE("the convnet agrees with LibTorch", "[other_models]") {
  ConvNetConfig c;
  c.n_stage = 2;
  c.n_block = 2;
  c.n_channel = 3;
  ConvNet net(c, {{2, 5, 6}, 4});
  auto w = randomise(net);
  const at::Tensor in = torch::randn({3, 2, 5, 6}, at::kDouble);

  const auto conv = [&](const at::Tensor& x, const std::string& path, int64_t stride,
                        int64_t padding) {
    return torch::conv2d(x, w.at(path + ".weight"), {}, stride, padding);
  };
  const auto norm = [&](const at::Tensor& x, const std::string& path) {
    return torch::batch_norm(x, w.at(path + ".weight"), w.at(path + ".bias"), {}, {}, true, 0.1,
                             1e-5, false);
  };

  at::Tensor x = torch::relu(norm(conv(in, "stem", 1, 1), "stem_norm"));
  for (int b = 0; b < 4; ++b) {
    const std::string p = "blocks." + std::to_string(b);
    const int64_t stride = b == 2 ? 2 : 1;
    const at::Tensor h = torch::relu(norm(conv(x, p + ".conv1", stride, 1), p + ".norm1"));
    const at::Tensor branch = norm(conv(h, p + ".conv2", 1, 1), p + ".norm2");
    x = torch::relu(branch +
                    (b == 2 ? norm(conv(x, p + ".shortcut.conv", 2, 0), p + ".shortcut.norm") : x));
  }

  const at::Tensor wanted =
      torch::linear(x.mean(at::IntArrayRef{2, 3}), w.at("head.weight"), w.at("head.bias"));
  const Training training;
  check_against(net, w, net(Variable(in)), wanted);
}

TEST_CASE("the rnn agrees with LibTorch, with tied weights and untied ones", "[other_models]") {
  for (const bool tie : {true, false}) {
    for (const std::string cell : {"lstm", "gru"}) {
      RNNConfig c;
      c.cell = cell;
      c.n_layer = 2;
      c.n_hidden = 5;
      c.n_embd = tie ? 5 : 4;
      c.vocab_size = 7;
      c.tie_weights = tie;
      RNN rnn(c);
      auto w = randomise(rnn);

      const at::Tensor ids = torch::randint(7, {3, 6}), targets = torch::randint(7, {3, 6});
      std::vector<at::Tensor> flat;
      for (const std::string l : {"0", "1"}) {
        for (const char* name : {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"})
          flat.push_back(w.at("layers." + (name + l)));
      }

      const at::Tensor x = torch::embedding(w.at("tokens.weight"), ids),
                       zero = torch::zeros({2, 3, 5}, at::kDouble);
      const at::Tensor y =
          cell == "lstm"
              ? std::get<0>(torch::lstm(x, {zero, zero}, flat, true, 2, 0.0, false, false, true))
              : std::get<0>(torch::gru(x, zero, flat, true, 2, 0.0, false, false, true));
      const at::Tensor logits = torch::linear(y, w.at(tie ? "tokens.weight" : "head.weight"));

      check_near("logits", rnn(ids).data(), logits.detach());
      check_against(rnn, w, head_loss(rnn, ids, targets),
                    torch::cross_entropy_loss(logits.view({-1, 7}), targets.reshape({-1})));
    }
  }
}

/// Returns the frequencies [D / 2] of a Llama's rotary positions, and the factor by which cosines
/// and sines are multiplied.
std::pair<at::Tensor, double> angles_of(const LlamaConfig& c) {
  const int64_t d = c.head_width(), half = d / 2;
  std::vector<double> angle;
  const bool yarn = c.rope_scaling == "yarn";
  const auto yarn_pair = [&](double waves) {  // the code of YaRN's authors, as in transformers
    return static_cast<double>(d) *
           std::log(static_cast<double>(c.rope_original_context) / (waves * 2 * M_PI)) /
           (2 * std::log(c.rope_theta));
  };

  for (int64_t i = 0; i < half; ++i) {
    double f = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    if (c.rope_scaling == "linear") f /= c.rope_factor;

    if (c.rope_scaling == "llama3") {  // as in Llama 3.1's code
      const double wave = 2 * M_PI / f, context = static_cast<double>(c.rope_original_context);
      const double smooth = (context / wave - c.rope_low_freq_factor) /
                            (c.rope_high_freq_factor - c.rope_low_freq_factor);
      if (wave > context / c.rope_low_freq_factor)
        f /= c.rope_factor;
      else if (wave >= context / c.rope_high_freq_factor)
        f = (1 - smooth) * f / c.rope_factor + smooth * f;
    }

    if (yarn) {
      double first = yarn_pair(c.rope_beta_fast), last = yarn_pair(c.rope_beta_slow);
      if (c.rope_truncate) {
        first = std::floor(first);
        last = std::ceil(last);
      }
      first = std::max(0.0, first);
      last = std::min(static_cast<double>(d - 1), last);
      const double ramp = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
      f = ramp * f / c.rope_factor + (1 - ramp) * f;
    }
    angle.push_back(f);
  }

  const double longer = !yarn                         ? 1
                        : c.rope_attention_factor > 0 ? c.rope_attention_factor
                                                      : 1 + std::log(c.rope_factor) / 10;
  return {torch::tensor(angle, at::kDouble), longer};
}

/// Returns the logits [B, T, V] of a Llama built from LibTorch's functions.
at::Tensor llama_of(const LlamaConfig& c, const Leaves& w, const at::Tensor& ids) {
  const int64_t b = ids.size(0), t = ids.size(1), d = c.head_width(), kv = c.kv_heads(),
                half = d / 2;
  LlamaConfig plain = c;  // the rotary positions of blocks with a window
  plain.rope_scaling = "none";
  plain.rope_theta = c.rope_local_theta;

  const auto norm = [&](const at::Tensor& x, const std::string& path) {
    const auto scale = w.find(path + ".weight");
    return scale == w.end() ? x
                            : x / (x.square().mean(-1, true) + c.norm_eps).sqrt() * scale->second;
  };
  const auto capped = [](const at::Tensor& x, double cap) {
    return cap > 0 ? cap * torch::tanh(x / cap) : x;
  };
  const auto lin = [&](const at::Tensor& x, const std::string& path) {
    const auto bias = w.find(path + ".bias");
    return torch::linear(x, w.at(path + ".weight"), bias == w.end() ? at::Tensor() : bias->second);
  };

  at::Tensor x = torch::embedding(w.at("tokens.weight"), ids);
  if (c.scale_embeddings) x = x * std::sqrt(static_cast<double>(c.n_embd));
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const std::string p = "blocks." + std::to_string(i);
    const auto at = [i](const std::string& digits) {
      return digits[static_cast<size_t>(i) % digits.size()] == '1';
    };
    const bool window = c.sliding_window > 0 && at(c.window_layers);
    const auto [angles, longer] = angles_of(window && c.rope_local_theta > 0 ? plain : c);
    const at::Tensor turn = torch::arange(t, at::kDouble).unsqueeze(1) * angles;

    // Compute attention: first the heads of queries, keys and values, then the masked scores.
    const at::Tensor h = norm(x, p + ".norm1");
    const auto heads = [&, factor = longer](const char* name, int64_t n, bool positioned) {
      at::Tensor y = lin(h, p + ".attn." + name);
      const bool whole = c.qk_norm_over == "projection";
      if (positioned && c.qk_norm && whole) y = norm(y, p + ".attn." + name + "_norm");
      y = y.view({b, t, n, d});
      if (positioned && c.qk_norm && !whole) y = norm(y, p + ".attn." + name + "_norm");
      y = y.transpose(1, 2);
      if (positioned && at(c.rope_layers)) {
        const at::Tensor rotated = torch::cat({-y.slice(3, half), y.slice(3, 0, half)}, 3);
        y = factor *
            (y * torch::cat({turn, turn}, 1).cos() + rotated * torch::cat({turn, turn}, 1).sin());
      }
      return y.repeat_interleave(c.n_head / n, 1);
    };
    at::Tensor s =
        heads("q", c.n_head, true).matmul(heads("k", kv, true).transpose(2, 3)) /
        std::sqrt(c.query_pre_attn_scalar > 0 ? c.query_pre_attn_scalar : static_cast<double>(d));
    s = capped(s, c.attention_softcap)
            .masked_fill(torch::ones({t, t}, at::kBool).triu(1), -INFINITY);
    if (window)
      s = s.masked_fill(torch::ones({t, t}, at::kBool).tril(-c.sliding_window), -INFINITY);
    const at::Tensor y = s.softmax(-1).matmul(heads("v", kv, false)).transpose(1, 2);
    x = x + norm(lin(y.reshape({b, t, c.n_head * d}), p + ".attn.proj"), p + ".post_norm1");

    // Compute the feed-forward part.
    const at::Tensor f = norm(x, p + ".norm2"), gate = lin(f, p + ".mlp.gate");
    const at::Tensor g = c.activation == "gelu" ? torch::gelu(gate, "tanh") : torch::silu(gate);
    x = x + norm(lin(g * lin(f, p + ".mlp.up"), p + ".mlp.down"), p + ".post_norm2");
  }
  return capped(
      torch::linear(norm(x, "norm"), w.at(c.tie_weights ? "tokens.weight" : "head.weight")),
      c.logit_softcap);
}

TEST_CASE(
    "the Llama agrees with LibTorch: grouped queries, scaled angles, biases, norms, windows, caps, "
    "tied and untied weights",
    "[other_models]") {
  std::vector<LlamaConfig> configs(17);
  for (LlamaConfig& c : configs) {
    c.n_layer = 2;
    c.n_head = 4;
    c.n_embd = 16;
    c.n_inner = 10;
    c.block_size = 9;
    c.vocab_size = 7;
  }
  configs[1].n_kv_head = 2;
  configs[1].tie_weights = false;
  configs[2].n_kv_head = 1;
  configs[2].qkv_bias = true;
  configs[2].head_dim = 6;
  configs[3].qk_norm = true;
  configs[3].norm_eps = 1e-2;
  configs[3].n_kv_head = 2;
  configs[4].rope_scaling = "linear";
  configs[4].rope_factor = 3;
  configs[5].rope_scaling = "llama3";
  configs[5].rope_factor = 8;
  configs[5].rope_theta = 100;
  configs[5].rope_original_context = 40;
  configs[5].head_dim = 12;
  configs[6].n_head = 2;
  configs[6].qkv_bias = configs[6].qk_norm = true;
  configs[6].tie_weights = false;
  configs[6].n_inner = 0;
  configs[7].rope_scaling = "yarn";
  configs[7].rope_factor = 4;
  configs[7].rope_original_context = 60;
  configs[7].head_dim = 12;
  configs[7].rope_theta = 50;
  configs[7].rope_beta_fast = 6;
  configs[8] = configs[7];
  configs[8].rope_attention_factor = 1.7;
  configs[8].rope_beta_slow = 2;
  configs[9] = configs[7];
  configs[9].rope_truncate = false;
  configs[10].sliding_window = 3;
  configs[10].n_kv_head = 2;
  configs[11].sliding_window = 1;
  configs[11].window_layers = "01";
  configs[11].rope_layers = "10";
  configs[12] = configs[7];
  configs[12].sliding_window = 4;
  configs[12].window_layers = "10";
  configs[12].rope_local_theta = 20;
  configs[13].norm_position = "post";
  configs[13].qk_norm = true;
  configs[13].n_kv_head = 2;
  configs[13].qk_norm_over = "projection";
  configs[14].norm_position = "both";
  configs[14].activation = "gelu";
  configs[14].n_kv_head = 2;
  configs[14].scale_embeddings = true;
  configs[14].query_pre_attn_scalar = 9;
  configs[15] = configs[14];
  configs[15].attention_softcap = 2;
  configs[15].logit_softcap = 3;
  configs[15].sliding_window = 4;
  configs[15].window_layers = "10";
  configs[16] = configs[15];
  configs[16].tie_weights = false;
  configs[16].qk_norm = true;
  for (size_t i = 0; i < configs.size(); ++i) {
    INFO("config " << i);
    const LlamaConfig& c = configs[i];
    CHECK(!Llama::check(c));
    Llama model(c);
    auto w = randomise(model);
    const at::Tensor ids = torch::randint(7, {3, 9}), targets = torch::randint(7, {3, 9});
    const at::Tensor logits = llama_of(c, w, ids);
    check_near("logits", model(ids).data(), logits.detach());
    check_against(model, w, head_loss(model, ids, targets),
                  torch::cross_entropy_loss(logits.view({-1, 7}), targets.reshape({-1})));
    // In float32, Lathe's kernels run. The tolerance allows for the rounding of their sums.
    move_to(model, at::kCPU, at::kFloat);
    CHECK((model(ids).data() - logits.detach()).abs().max().item<double>() <=
          2e-5 * std::max(1.0, logits.abs().max().item<double>()));
  }
  // The comparison notices a change of each of these keys.
  Llama model(configs[5]);
  const auto w = randomise(model);
  const at::Tensor ids = torch::randint(7, {1, 9});
  LlamaConfig other = configs[5];
  other.rope_factor = 4;
  CHECK((llama_of(other, w, ids) - model(ids).data()).abs().max().item<double>() > 1e-6);

  Llama all(configs[16]);
  const auto all_w = randomise(all);
  const std::vector<std::function<void(LlamaConfig&)>> changes{
      [](LlamaConfig& c) { c.sliding_window = 5; },
      [](LlamaConfig& c) { c.window_layers = "01"; },
      [](LlamaConfig& c) { c.rope_layers = "10"; },
      [](LlamaConfig& c) { c.rope_local_theta = 9; },
      [](LlamaConfig& c) { c.query_pre_attn_scalar = 0; },
      [](LlamaConfig& c) { c.attention_softcap = 0; },
      [](LlamaConfig& c) { c.logit_softcap = 0; },
      [](LlamaConfig& c) { c.activation = "silu"; },
      [](LlamaConfig& c) { c.scale_embeddings = false; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    LlamaConfig changed = configs[16];
    changes[i](changed);
    CHECK((llama_of(changed, all_w, ids) - all(ids).data()).abs().max().item<double>() > 1e-6);
  }
}

TEST_CASE("the mlp agrees with LibTorch, with each activation and norm", "[other_models]") {
  for (const std::string activation : {"relu", "gelu", "silu", "tanh"}) {
    for (const std::string norm : {"none", "layer", "batch"}) {
      MLPConfig c;
      c.n_layer = 2;
      c.n_hidden = 5;
      c.activation = activation;
      c.norm = norm;
      MLP model(c, {{2, 3}, 4});
      auto w = randomise(model);

      const at::Tensor in = torch::randn({6, 2, 3}, at::kDouble);
      const auto lin = [&](const at::Tensor& x, const std::string& path) {
        return torch::linear(x, w.at(path + ".weight"), w.at(path + ".bias"));
      };

      at::Tensor x = in.view({6, 6});
      for (const std::string p : {"layers.0", "layers.1"}) {
        x = lin(x, p + ".linear");
        const auto of = [&](const char* name) { return w.at(p + ".norm." + name); };
        if (norm == "layer") x = torch::layer_norm(x, {5}, of("weight"), of("bias"), 1e-5);
        if (norm == "batch")
          x = torch::batch_norm(x, of("weight"), of("bias"), {}, {}, true, 0.1, 1e-5, false);
        x = activation == "relu"   ? torch::relu(x)
            : activation == "gelu" ? torch::gelu(x, "tanh")
            : activation == "silu" ? torch::silu(x)
                                   : torch::tanh(x);
      }

      const Training training;
      check_against(model, w, model(Variable(in)), lin(x, "head"));
    }
  }
}

/// Returns the matmul FLOPs of a forward pass and of its backward pass.
template <class F>
std::pair<double, double> counted(F&& run) {
  FlopCount count;
  const CountFlops counting(count);
  const Training training;
  backward(sum(run()));
  return {count.forward.matmul, count.backward.matmul};
}

TEST_CASE("the formulas for FLOPs agree with the counted FLOPs", "[other_models]") {
  // A formula counts three times the FLOPs of a forward pass. By convention, this includes the
  // gradient of the input data, although it is not computed.
  ConvNetConfig c;
  c.n_channel = 4;
  ConvNet net(c, {{2, 9, 7}, 5});
  auto [forward, behind] = counted([&] { return net(Variable(torch::randn({3, 2, 9, 7}))); });
  CHECK(3 * forward == 3 * net.flops_per_unit());
  CHECK(behind == 2 * forward - 2.0 * 3 * static_cast<double>(net.stem.weight.numel()) * 9 * 7);

  MLPConfig m;
  MLP mlp(m, {{8, 8}, 10});
  std::tie(forward, behind) = counted([&] { return mlp(Variable(torch::randn({3, 8, 8}))); });
  CHECK(3 * forward == 3 * mlp.flops_per_unit());
  CHECK(behind == 2 * forward - 2.0 * 3 * 64 * static_cast<double>(m.n_hidden));

  for (const bool tie : {true, false}) {
    LlamaConfig l;
    l.n_kv_head = 2;
    l.head_dim = 24;
    l.vocab_size = 11;
    l.tie_weights = tie;
    l.block_size = 9;
    Llama llama(l);
    const double norms =
        6 * static_cast<double>(128 * 9);  // the formula counts norms, but they have no matmul
    std::tie(forward, behind) = counted([&] { return llama(torch::zeros({3, 9}, at::kLong)); });
    CHECK(3 * forward == 3 * 9 * (llama.flops_per_unit() - norms));
    CHECK(behind == 2 * forward);

    // A block counts only the keys in its window. If the window is as long as the context, all keys
    // count.
    l.sliding_window = 4;
    l.window_layers = "110";
    Llama windows(l);
    const double products = forward;
    std::tie(forward, behind) = counted([&] { return windows(torch::zeros({3, 9}, at::kLong)); });
    CHECK(products - forward == 3 * 4.0 * 3 * 9 * (4 * 24) * (9 - 4));
    CHECK(3 * forward == 3 * 9 * (windows.flops_per_unit() - norms));
    l.sliding_window = 9;
    CHECK(Llama(l).flops_per_unit() == llama.flops_per_unit());
  }

  for (const std::string cell : {"lstm", "gru"}) {
    RNNConfig r;
    r.cell = cell;
    r.vocab_size = 11;
    RNN rnn(r);
    std::tie(forward, behind) = counted([&] { return rnn(torch::zeros({3, 5}, at::kLong)); });
    CHECK(3 * forward == 3 * 5 * rnn.flops_per_unit());
    const double state =
        2.0 * 3 * 2 * (cell == "lstm" ? 4 : 3) * 128 * 128;  // backward skips zero initial states
    CHECK(behind == 2 * forward - state);
  }
}

TEST_CASE("parameter_count() agrees with the parameters of the models", "[other_models]") {
  const auto has = [](const auto& model) { return count(parameters(model)); };
  for (const int64_t layers : {0, 1, 3}) {
    for (const std::string norm : {"none", "layer", "batch"}) {
      MLPConfig c;
      c.n_layer = layers;
      c.norm = norm;
      const ModelSizes sizes{{3, 4}, 7};
      CHECK(has(MLP(c, sizes)) == parameter_count(c, sizes));
    }
  }

  for (const int64_t stages : {1, 3}) {
    for (const int64_t blocks : {1, 2}) {
      ConvNetConfig c;
      c.n_stage = stages;
      c.n_block = blocks;
      c.n_channel = 5;
      for (const ModelSizes& sizes : {ModelSizes{{3, 8, 8}, 7}, ModelSizes{{8, 9}, 2}})
        CHECK(has(ConvNet(c, sizes)) == parameter_count(c, sizes));
    }
  }

  for (const std::string cell : {"lstm", "gru"}) {
    for (const bool tie : {true, false}) {
      RNNConfig c;
      c.cell = cell;
      c.n_layer = 3;
      c.n_hidden = 6;
      c.n_embd = tie ? 6 : 4;
      c.vocab_size = 9;
      c.tie_weights = tie;
      CHECK(has(RNN(c)) == parameter_count(c));
    }
  }
}

/// Trains a model on one batch; returns the first and the last loss.
template <class Loss>
std::pair<double, double> learn(const ModuleRef& model, int steps, Loss&& loss_of) {
  OptimConfig oc;
  oc.kind = "adam";
  oc.weight_decay = 0;
  Optimizer optimizer(oc, parameters(ConstModuleRef(model)));
  double first = 0, loss = 0;
  for (int i = 0; i < steps; ++i) {
    const TrainingStep step({.seed = 1, .step = static_cast<uint64_t>(i)});
    for (const auto& p : parameters(model)) p.parameter.leaf().grad.reset();
    const Variable l = loss_of();
    loss = l.item();
    if (i == 0) first = loss;
    backward(l);
    optimizer.step(1e-2);
  }
  return {first, loss};
}

TEST_CASE("convnet, mlp and rnn overfit one batch in float32 and under bf16 and fp16",
          "[other_models]") {
  const at::Tensor labels = torch::arange(8).remainder(4), images = torch::randn({8, 6, 6});
  const at::Tensor ids = torch::randint(9, {4, 7}), targets = torch::randint(9, {4, 7});
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Autocast autocast(dtype);

    ConvNetConfig c;
    c.n_stage = 2;
    c.n_block = 1;
    c.n_channel = 8;
    ConvNet net(c, {{6, 6}, 4});
    initialize(net, Init::kaiming, 1);
    auto [first, last] =
        learn(net, 40, [&] { return cross_entropy(net(Variable(images)), labels); });
    CHECK(first > 0.7);
    CHECK(last < 0.05);
    {  // the running statistics have converged, so the loss is also low outside training
      const Evaluation evaluation;
      CHECK(cross_entropy(net(Variable(images)), labels).item() < 0.2);
    }

    MLPConfig m;
    m.n_hidden = 32;
    m.norm = "batch";
    MLP mlp(m, {{6, 6}, 4});
    initialize(mlp, Init::kaiming, 1);
    std::tie(first, last) =
        learn(mlp, 40, [&] { return cross_entropy(mlp(Variable(images)), labels); });
    CHECK(first > 0.7);
    CHECK(last < 0.05);

    for (const std::string cell : {"lstm", "gru"}) {
      RNNConfig r;
      r.cell = cell;
      r.n_layer = 1;
      r.n_hidden = r.n_embd = 32;
      r.vocab_size = 9;
      RNN rnn(r);
      initialize(rnn, Init::fan_in, 1);
      std::tie(first, last) = learn(rnn, 150, [&] { return head_loss(rnn, ids, targets); });
      CHECK(first > 1.5);
      CHECK(last < 0.2);
    }
  }
}

TEST_CASE("models refuse inputs and configs that do not fit", "[other_models]") {
  // Inputs of another shape are refused.
  CHECK_THAT(error_of([&] { ConvNet(ConvNetConfig{}, {{64}, 10}); }),
             ContainsSubstring("convnet: ") && ContainsSubstring("[C, H, W]") &&
                 ContainsSubstring("[64]"));
  CHECK_THAT(error_of([&] {
               ConvNet(ConvNetConfig{}, {{1, 8, 8}, 10})(Variable(torch::ones({2, 1, 8, 7})));
             }),
             ContainsSubstring("[B,C=1,H=8,W=8]") && ContainsSubstring("float32[2,1,8,7]"));
  CHECK_THAT(error_of([&] { MLP(MLPConfig{}, {{4}, 2})(Variable(torch::ones({2, 5}))); }),
             ContainsSubstring("mlp: ") && ContainsSubstring("4 numbers") &&
                 ContainsSubstring("float32[2,5]"));

  LlamaConfig l;
  const auto refusal = [&] {
    const auto fault = Llama::check(l);
    return fault ? fault->what : "";
  };
  CHECK(refusal() == "");
  l.n_kv_head = 3;
  CHECK_THAT(refusal(),
             ContainsSubstring("model.n_head = 4") && ContainsSubstring("model.n_kv_head = 3"));
  l.n_kv_head = 2;
  l.head_dim = 5;
  CHECK_THAT(refusal(), ContainsSubstring("5 channels") && ContainsSubstring("model.head_dim"));
  l.head_dim = 0;
  l.n_embd = 130;
  CHECK_THAT(refusal(),
             ContainsSubstring("model.n_embd = 130") && ContainsSubstring("model.n_head = 4"));
  l.n_embd = 128;

  // Config keys of rotary positions must be consistent with each other.
  l.rope_factor = 2;
  CHECK_THAT(refusal(), ContainsSubstring("model.rope_factor = 2") &&
                            ContainsSubstring("model.rope_scaling = \"none\""));
  l.rope_scaling = "llama3";
  l.rope_low_freq_factor = 4;
  CHECK_THAT(refusal(), ContainsSubstring("model.rope_low_freq_factor = 4") &&
                            ContainsSubstring("model.rope_high_freq_factor"));

  RNNConfig c;
  c.vocab_size = 5;
  c.n_embd = 64;
  c.tie_weights = true;
  CHECK_THAT(error_of([&] { RNN{c}; }), ContainsSubstring("n_embd and n_hidden") &&
                                            ContainsSubstring("64 and ") &&
                                            ContainsSubstring("tie_weights"));
  c.n_embd = 128;
  c.block_size = 4;
  CHECK_THAT(error_of([&] {
               const RNN rnn(c);
               rnn(torch::zeros({1, 5}, at::kLong));
             }),
             ContainsSubstring("5 tokens") && ContainsSubstring("context of 4"));
}

}  // namespace
