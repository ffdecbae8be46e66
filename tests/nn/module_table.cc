// Defines the rows of the module table.
#include <cmath>

#include "autograd/create.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "tests/nn/module_case.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using W = const Weights&;
using T = const Tensors&;

at::Tensor randn(std::vector<int64_t> sizes) { return torch::randn(sizes, at::kDouble); }

/// Calls a module with its only input. Most rows use this function.
const auto call1 = [](const auto& m, V x) { return m(x[0]); };

void add_layers(std::vector<ModuleCase>& t) {
  t.push_back(module_row("Linear", "", Linear(3, 4, true), {randn({2, 5, 3})}, call1, [](W w, T x) {
    torch::nn::Linear m(3, 4);
    m->weight = w.at("weight");
    m->bias = w.at("bias");
    return m(x[0]);
  }));
  t.push_back(module_row(
      "Embedding", "", Embedding(5, 3), {},
      [](const Embedding& m, V) { return m(longs({0, 4, 4, 1}).view({2, 2})); },
      [](W w, T) {
        torch::nn::Embedding m(5, 3);
        m->weight = w.at("weight");
        return m(longs({0, 4, 4, 1}).view({2, 2}));
      }));
  for (const auto mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
    using Options = torch::nn::functional::EmbeddingBagFuncOptions;
    const auto options = [mode] {
      Options o;
      if (mode == BagMode::sum) o.mode(torch::kSum);
      if (mode == BagMode::mean) o.mode(torch::kMean);
      if (mode == BagMode::max) o.mode(torch::kMax);
      return o;
    };
    const at::Tensor ids = longs({0, 4, 4, 1, 2, 0}), offsets = longs({0, 2, 2, 5});
    const auto bag = torch::nn::functional::embedding_bag;
    const auto label = [mode](const char* what) {
      return what + std::to_string(static_cast<int>(mode));
    };
    t.push_back(module_row(
        "EmbeddingBag", label("table, mode "), EmbeddingBag(5, 3, mode), {},
        [ids](const EmbeddingBag& m, V) { return m(ids.view({2, 3})); },
        [=](W w, T) { return bag(ids.view({2, 3}), w.at("weight"), options()); }));
    t.push_back(module_row(
        "EmbeddingBag", label("offsets, one bag empty, padding, mode "),
        EmbeddingBag(5, 3, mode, 4), {}, [=](const EmbeddingBag& m, V) { return m(ids, offsets); },
        [=](W w, T) {
          return bag(ids, w.at("weight"), options().offsets(offsets).padding_idx(4));
        }));
  }
  t.push_back(module_row(
      "EmbeddingBag", "scales", EmbeddingBag(5, 3, BagMode::sum), {randn({2, 2})},
      [](const EmbeddingBag& m, V x) { return m(longs({0, 4, 4, 1}).view({2, 2}), x[0]); },
      [](W w, T x) {
        return torch::nn::functional::embedding_bag(longs({0, 4, 4, 1}).view({2, 2}),
                                                    w.at("weight"),
                                                    torch::nn::functional::EmbeddingBagFuncOptions()
                                                        .mode(torch::kSum)
                                                        .per_sample_weights(x[0]));
      }));
  t.push_back(
      module_row("LayerNorm", "", LayerNorm(5, true), {randn({2, 3, 5})}, call1, [](W w, T x) {
        torch::nn::LayerNorm m(torch::nn::LayerNormOptions({5}));
        m->weight = w.at("weight");
        m->bias = w.at("bias");
        return m(x[0]);
      }));
  t.push_back(module_row("RMSNorm", "", RMSNorm(5), {randn({2, 3, 5})}, call1, [](W w, T x) {
    return torch::rms_norm(x[0], {5}, w.at("weight"), 1e-5);
  }));
  for (const auto& sizes : {std::vector<int64_t>{2, 6}, {2, 6, 4}, {2, 6, 3, 2}}) {
    auto row = module_row("GroupNorm", std::to_string(sizes.size()) + " dims", GroupNorm(3, 6),
                          {randn(sizes)}, call1, [](W w, T x) {
                            torch::nn::GroupNorm m(3, 6);
                            m->weight = w.at("weight");
                            m->bias = w.at("bias");
                            return m(x[0]);
                          });
    row.checks_shape = sizes.size() != 3;  // the last dim may have any size
    t.push_back(row);
  }
  auto one = module_row("InstanceNorm1d", "", InstanceNorm1d(3), {randn({2, 3, 4})}, call1,
                        [](W, T x) { return torch::nn::InstanceNorm1d(3)(x[0]); });
  one.checks_shape = false;
  t.push_back(one);
  t.push_back(module_row("InstanceNorm2d", "affine", InstanceNorm2d(3, 1e-5, true),
                         {randn({2, 3, 4, 2})}, call1, [](W w, T x) {
                           torch::nn::InstanceNorm2d m(
                               torch::nn::InstanceNorm2dOptions(3).affine(true));
                           m->weight = w.at("weight");
                           m->bias = w.at("bias");
                           return m(x[0]);
                         }));
  t.push_back(module_row("BatchNorm1d", "", BatchNorm1d(3), {randn({4, 3})}, call1, [](W w, T x) {
    torch::nn::BatchNorm1d m(3);
    m->to(torch::kDouble);
    m->weight = w.at("weight");
    m->bias = w.at("bias");
    return m(x[0]);
  }));
  t.push_back(
      module_row("BatchNorm2d", "", BatchNorm2d(3), {randn({2, 3, 4, 2})}, call1, [](W w, T x) {
        torch::nn::BatchNorm2d m(3);
        m->to(torch::kDouble);
        m->weight = w.at("weight");
        m->bias = w.at("bias");
        return m(x[0]);
      }));
}

void add_images(std::vector<ModuleCase>& t) {
  t.push_back(
      module_row("Conv2d", "", Conv2d(4, 6, {3, 2}, {.stride = {2, 1}, .padding = 1, .groups = 2}),
                 {randn({2, 4, 7, 5})}, call1, [](W w, T x) {
                   torch::nn::Conv2d m(
                       torch::nn::Conv2dOptions(4, 6, {3, 2}).stride({2, 1}).padding(1).groups(2));
                   m->weight = w.at("weight");
                   m->bias = w.at("bias");
                   return m(x[0]);
                 }));
  const auto any_size = [&t](ModuleCase row) {
    row.checks_shape = false;
    t.push_back(std::move(row));
  };
  any_size(module_row(
      "Conv1d", "", Conv1d(4, 6, 3, {.stride = 2, .padding = 2, .dilation = 2, .groups = 2}),
      {randn({2, 4, 9})}, call1, [](W w, T x) {
        torch::nn::Conv1d m(
            torch::nn::Conv1dOptions(4, 6, 3).stride(2).padding(2).dilation(2).groups(2));
        m->weight = w.at("weight");
        m->bias = w.at("bias");
        return m(x[0]);
      }));
  any_size(module_row("MaxPool2d", "", MaxPool2d{.kernel = {3, 2}, .stride = 2, .padding = 1},
                      {randn({2, 3, 7, 5})}, call1, [](W, T x) {
                        return torch::nn::MaxPool2d(
                            torch::nn::MaxPool2dOptions({3, 2}).stride(2).padding(1))(x[0]);
                      }));
  any_size(module_row(
      "AvgPool2d", "", AvgPool2d{.kernel = 2}, {randn({2, 3, 6, 5})}, call1,
      [](W, T x) { return torch::nn::AvgPool2d(torch::nn::AvgPool2dOptions(2))(x[0]); }));
  any_size(module_row("AdaptiveAvgPool2d", "", AdaptiveAvgPool2d{.out = {3, 2}},
                      {randn({2, 3, 7, 5})}, call1, [](W, T x) {
                        return torch::nn::AdaptiveAvgPool2d(
                            torch::nn::AdaptiveAvgPool2dOptions({3, 2}))(x[0]);
                      }));
  any_size(module_row(
      "MaxPool1d", "", MaxPool1d{.kernel = 3, .stride = 2, .padding = 1, .dilation = 1},
      {randn({2, 3, 8})}, call1, [](W, T x) {
        return torch::nn::MaxPool1d(torch::nn::MaxPool1dOptions(3).stride(2).padding(1))(x[0]);
      }));
  any_size(module_row(
      "AvgPool1d", "", AvgPool1d{.kernel = 3, .stride = 2}, {randn({2, 3, 8})}, call1,
      [](W, T x) { return torch::nn::AvgPool1d(torch::nn::AvgPool1dOptions(3).stride(2))(x[0]); }));
  any_size(module_row("AdaptiveAvgPool1d", "", AdaptiveAvgPool1d{.out = 3}, {randn({2, 3, 8})},
                      call1, [](W, T x) { return torch::nn::AdaptiveAvgPool1d(3)(x[0]); }));
}

/// Returns torch's attention with the weights under the path `at`. Its inputs are time-first.
torch::nn::MultiheadAttention their_attention(W w, const std::string& at, int64_t channels,
                                              int64_t heads) {
  torch::nn::MultiheadAttention m(channels, heads);
  const auto of = [&](const std::string& name) { return w.at(at + name); };
  m->in_proj_weight = torch::cat({of("q.weight"), of("k.weight"), of("v.weight")});
  m->in_proj_bias = torch::cat({of("q.bias"), of("k.bias"), of("v.bias")});
  m->out_proj->weight = of("out_proj.weight");
  m->out_proj->bias = of("out_proj.bias");
  return m;
}
at::Tensor swap(const at::Tensor& x) { return x.transpose(0, 1); }
/// Returns a mask in the form that torch::nn's C++ attention takes: numbers to add to the scores.
at::Tensor added(const at::Tensor& hidden) {
  return torch::zeros(hidden.sizes(), at::kDouble).masked_fill(hidden, -INFINITY);
}
at::Tensor causal(int64_t n) { return added(torch::ones({n, n}, at::kBool).triu(1)); }

void add_attention(std::vector<ModuleCase>& t) {
  t.push_back(module_row("CausalSelfAttention", "", CausalSelfAttention(6, 2, true),
                         {randn({2, 4, 6})}, call1, [](W w, T x) {
                           torch::nn::MultiheadAttention m(6, 2);
                           m->in_proj_weight = w.at("qkv.weight");
                           m->in_proj_bias = w.at("qkv.bias");
                           m->out_proj->weight = w.at("proj.weight");
                           m->out_proj->bias = w.at("proj.bias");
                           return swap(std::get<0>(m->forward(swap(x[0]), swap(x[0]), swap(x[0]),
                                                              {}, false, causal(4))));
                         }));
  t.push_back(module_row(
      "MultiHeadAttention", "self, causal", MultiHeadAttention(6, 2), {randn({2, 4, 6})},
      [](const MultiHeadAttention& m, V x) { return m(x[0], AttentionMask{.causal = true}); },
      [](W w, T x) {
        auto m = their_attention(w, "", 6, 2);
        return swap(
            std::get<0>(m->forward(swap(x[0]), swap(x[0]), swap(x[0]), {}, false, causal(4))));
      }));
  const at::Tensor padding =
      torch::tensor({false, true, false, false, false, false, false, true, true, false}, at::kBool)
          .view({2, 5});
  const at::Tensor hidden = torch::tensor({false, false, true, false, false, false, true, false,
                                           false, false, false, false, false, false, false},
                                          at::kBool)
                                .view({3, 5});
  t.push_back(module_row(
      "MultiHeadAttention", "cross, other widths, both masks",
      MultiHeadAttention(6, 2, true, 0, 4, 4),
      {randn({2, 3, 6}), randn({2, 5, 4}), randn({2, 5, 4})},
      [=](const MultiHeadAttention& m, V x) {
        return m(x[0], x[1], x[2], {.hidden = hidden, .padding = padding});
      },
      [=](W w, T x) {
        torch::nn::MultiheadAttention m(torch::nn::MultiheadAttentionOptions(6, 2).kdim(4).vdim(4));
        m->q_proj_weight = w.at("q.weight");
        m->k_proj_weight = w.at("k.weight");
        m->v_proj_weight = w.at("v.weight");
        m->in_proj_bias = torch::cat({w.at("q.bias"), w.at("k.bias"), w.at("v.bias")});
        m->out_proj->weight = w.at("out_proj.weight");
        m->out_proj->bias = w.at("out_proj.bias");
        return swap(std::get<0>(
            m->forward(swap(x[0]), swap(x[1]), swap(x[2]), padding, false, added(hidden))));
      }));
  const at::Tensor slopes = randn({4, 4});
  t.push_back(module_row(
      "MultiHeadAttention", "added scores", MultiHeadAttention(6, 3), {randn({2, 4, 6})},
      [=](const MultiHeadAttention& m, V x) { return m(x[0], AttentionMask{.hidden = slopes}); },
      [=](W w, T x) {
        auto m = their_attention(w, "", 6, 3);
        return swap(std::get<0>(m->forward(swap(x[0]), swap(x[0]), swap(x[0]), {}, false, slopes)));
      }));
  // Compute the rotation of each pair of channels as a product of complex numbers.
  const auto turned = [](const at::Tensor& x, int64_t first) {
    const int64_t n = x.size(2), half = x.size(3) / 2;
    const at::Tensor angle = torch::arange(first, first + n, at::kDouble).unsqueeze(1) *
                             torch::exp(torch::arange(half, at::kDouble) *
                                        (-std::log(100.0) / static_cast<double>(half)));
    const at::Tensor z = torch::complex(x.slice(3, 0, half), x.slice(3, half)) *
                         torch::complex(torch::cos(angle), torch::sin(angle));
    return torch::cat({torch::real(z), torch::imag(z)}, 3);
  };
  t.push_back(module_row(
      "Rotary", "", Rotary(4, 100), {randn({2, 3, 5, 4})},
      [](const Rotary& m, V x) { return m(x[0], 2); },
      [turned](W, T x) { return turned(x[0], 2); }));
  t.back().checks_shape = false;  // check_module() widens dim 1, which may be any number of heads
  const Rotary places(4, 100);
  const at::Tensor rope_table = places.rope_table(torch::arange(5));
  for (const bool whole :
       {true, false}) {  // true: biases, norms, 2 key heads; false: neither, 1 key head
    t.push_back(module_row(
        "GroupedQueryAttention", whole ? "biases, norms" : "one head of keys",
        GroupedQueryAttention(6, 4, whole ? 2 : 1, 4, whole,
                              whole ? std::optional(1e-3) : std::nullopt),
        {randn({2, 5, 6}), randn({2, 5, 6})},
        [rope_table](const GroupedQueryAttention& m, V x) { return m(x[0], rope_table, x[1]); },
        [turned, whole](W w, T x) {
          const auto project = [&](const std::string& name, int64_t heads) {
            at::Tensor y = torch::linear(x[0], w.at(name + ".weight"),
                                         whole ? w.at(name + ".bias") : at::Tensor());
            y = y.view({2, 5, heads, 4});
            if (whole && name != "v")
              y = torch::rms_norm(y, {4}, w.at(name + "_norm.weight"), 1e-3);
            return y.transpose(1, 2).repeat_interleave(4 / heads, 1);
          };
          const int64_t keys = whole ? 2 : 1;
          const at::Tensor scores =
              turned(project("q", 4), 0).matmul(turned(project("k", keys), 0).transpose(-2, -1)) /
              2;
          const at::Tensor y = (scores + causal(5)).softmax(-1).matmul(project("v", keys));
          return x[1] + torch::linear(y.transpose(1, 2).reshape({2, 5, 16}), w.at("proj.weight"));
        }));
  }
  MultiHeadAttention rotary(8, 2);
  rotary.rotary.emplace(4, 100);
  t.push_back(module_row(
      "MultiHeadAttention", "rotary", rotary, {randn({2, 5, 8})},
      [](const MultiHeadAttention& m, V x) { return m(x[0], AttentionMask{.causal = true}); },
      [turned](W w, T x) {
        const auto project = [&](const std::string& name) {
          return torch::linear(x[0], w.at(name + ".weight"), w.at(name + ".bias"))
              .view({2, 5, 2, 4})
              .transpose(1, 2);
        };
        const at::Tensor scores =
            turned(project("q"), 0).matmul(turned(project("k"), 0).transpose(-2, -1)) / 2;
        const at::Tensor y = (scores + causal(5)).softmax(-1).matmul(project("v"));
        return torch::linear(y.transpose(1, 2).reshape({2, 5, 8}), w.at("out_proj.weight"),
                             w.at("out_proj.bias"));
      }));
}

at::Tensor their_linear(W w, const std::string& name, const at::Tensor& x) {
  return torch::linear(x, w.at(name + ".weight"), w.at(name + ".bias"));
}
template <class Layer>
void set_norm_and_linear(W w, const std::string& at, Layer& m) {
  for (const auto& [theirs, name] :
       {std::pair(&m->linear1, "linear1"), std::pair(&m->linear2, "linear2")})
    (*theirs)->weight = w.at(at + name + ".weight"), (*theirs)->bias = w.at(at + name + ".bias");
  for (const auto& [theirs, name] : {std::pair(&m->norm1, "norm1"), std::pair(&m->norm2, "norm2")})
    (*theirs)->weight = w.at(at + name + ".weight"), (*theirs)->bias = w.at(at + name + ".bias");
}
torch::nn::TransformerEncoderLayer their_encoder(W w, const std::string& at, bool gelu) {
  torch::nn::TransformerEncoderLayerOptions o(6, 2);
  o.dim_feedforward(10).dropout(0);
  if (gelu) o.activation(torch::kGELU);
  torch::nn::TransformerEncoderLayer m(o);
  m->self_attn = their_attention(w, at + "self_attn.", 6, 2);
  set_norm_and_linear(w, at, m);
  return m;
}
torch::nn::TransformerDecoderLayer their_decoder(W w, const std::string& at) {
  torch::nn::TransformerDecoderLayer m(
      torch::nn::TransformerDecoderLayerOptions(6, 2).dim_feedforward(10).dropout(0));
  m->self_attn = their_attention(w, at + "self_attn.", 6, 2);
  m->multihead_attn = their_attention(w, at + "multihead_attn.", 6, 2);
  set_norm_and_linear(w, at, m);
  m->norm3->weight = w.at(at + "norm3.weight");
  m->norm3->bias = w.at(at + "norm3.bias");
  return m;
}

void add_transformers(std::vector<ModuleCase>& t) {
  t.push_back(
      module_row("FeedForward", "", FeedForward(3, true), {randn({2, 4, 3})}, call1, [](W w, T x) {
        return their_linear(w, "down", torch::gelu(their_linear(w, "up", x[0]), "tanh"));
      }));
  t.push_back(module_row(
      "GatedFeedForward", "", GatedFeedForward(3, 5), {randn({2, 4, 3}), randn({2, 4, 3})},
      [](const GatedFeedForward& m, V x) { return m(x[0], x[1]); },
      [](W w, T x) {
        const at::Tensor h = torch::silu(torch::linear(x[0], w.at("gate.weight"))) *
                             torch::linear(x[0], w.at("up.weight"));
        return x[1] + torch::linear(h, w.at("down.weight"));
      }));
  t.push_back(module_row("SwiGLU", "", SwiGLU(3, 5, true), {randn({2, 4, 3})}, call1, [](W w, T x) {
    const auto parts = their_linear(w, "up", x[0]).chunk(2, -1);
    return their_linear(w, "down", torch::silu(parts[0]) * parts[1]);
  }));
  TransformerOptions o{.n_embd = 6, .n_head = 2, .n_inner = 10};
  o.activation = "swiglu";
  t.push_back(module_row("TransformerFeedForward", "swiglu", TransformerFeedForward(o),
                         {randn({2, 4, 6})}, call1, [](W w, T x) {
                           const auto parts = their_linear(w, "linear1", x[0]).chunk(2, -1);
                           return their_linear(w, "linear2", torch::silu(parts[0]) * parts[1]);
                         }));
  for (const bool gelu : {false, true}) {
    o.activation = gelu ? "gelu" : "relu";
    t.push_back(module_row(
        "TransformerEncoderLayer", o.activation, TransformerEncoderLayer(o), {randn({2, 4, 6})},
        [](const TransformerEncoderLayer& m, V x) { return m(x[0], {.causal = true}); },
        [gelu](W w, T x) { return swap(their_encoder(w, "", gelu)(swap(x[0]), causal(4))); }));
  }
  o.activation = "relu";
  t.push_back(module_row("TransformerEncoder", "two layers", TransformerEncoder(2, o),
                         {randn({2, 4, 6})}, call1, [](W w, T x) {
                           at::Tensor y = swap(x[0]);
                           for (const std::string at : {"layers.0.", "layers.1."})
                             y = their_encoder(w, at, false)(y);
                           return swap(y);
                         }));
  t.push_back(module_row(
      "TransformerDecoderLayer", "", TransformerDecoderLayer(o),
      {randn({2, 4, 6}), randn({2, 3, 6})},
      [](const TransformerDecoderLayer& m, V x) { return m(x[0], x[1]); },
      [](W w, T x) { return swap(their_decoder(w, "")(swap(x[0]), swap(x[1]), causal(4))); }));
  t.push_back(module_row(
      "TransformerDecoder", "two layers", TransformerDecoder(2, o),
      {randn({2, 4, 6}), randn({2, 3, 6})},
      [](const TransformerDecoder& m, V x) { return m(x[0], x[1]); },
      [](W w, T x) {
        at::Tensor y = swap(x[0]);
        for (const std::string at : {"layers.0.", "layers.1."})
          y = their_decoder(w, at)(y, swap(x[1]), causal(4));
        return swap(y);
      }));
  // torch::nn's C++ layers lack the option norm_first, so the oracle uses attention and functions.
  o.norm_first = true;
  t.push_back(module_row(
      "TransformerEncoder", "norm first", TransformerEncoder(1, o), {randn({2, 4, 6})}, call1,
      [](W w, T x) {
        const auto norm = [&](const std::string& name, const at::Tensor& h) {
          return torch::layer_norm(h, {6}, w.at(name + ".weight"), w.at(name + ".bias"), 1e-5);
        };
        auto m = their_attention(w, "layers.0.self_attn.", 6, 2);
        const at::Tensor n = swap(norm("layers.0.norm1", x[0]));
        const at::Tensor h = x[0] + swap(std::get<0>(m->forward(n, n, n)));
        const at::Tensor f =
            torch::relu(their_linear(w, "layers.0.linear1", norm("layers.0.norm2", h)));
        return norm("norm", h + their_linear(w, "layers.0.linear2", f));
      }));
}

/// Adds rows that compare a recurrent module with torch's function. The function runs once per
/// sequence, with the sequence's own length.
template <class Module, class Theirs>
void add_recurrent(std::vector<ModuleCase>& t, const std::string& name, Theirs theirs) {
  for (const bool both : {false, true}) {
    for (const bool short_ones : {false, true}) {
      const int64_t directions = both ? 2 : 1;
      const std::vector<int64_t> lengths =
          short_ones ? std::vector<int64_t>{2, 5, 1} : std::vector<int64_t>{5, 5, 5};
      const at::Tensor given = short_ones ? longs(lengths) : at::Tensor();
      const RecurrentOptions options{.n_layer = 2, .bidirectional = both};
      constexpr bool lstm = std::is_same_v<Module, LSTM>;
      Tensors inputs{randn({3, 5, 3}), randn({2 * directions, 3, 4})};
      if (lstm) inputs.push_back(randn({2 * directions, 3, 4}));
      ModuleCase row = module_row(
          name,
          std::string(both ? "both directions" : "one direction") + (short_ones ? ", lengths" : ""),
          Module(3, 4, options), inputs, [](const Module& m, V x) { return m(x[0], {}).first; },
          [](W, T x) { return x[0]; });
      auto module = std::make_shared<Module>(3, 4, options);
      move_to(*module, at::kCPU, at::kDouble);
      row.parameters = [module] { return parameters(*module); };
      row.ours = [=](V x) -> std::vector<Variable> {
        if constexpr (lstm) {
          const auto [y, last] = (*module)(x[0], {x[1], x[2]}, given);
          return {y, last.h, last.c};
        } else {
          const auto [y, last] = (*module)(x[0], x[1], given);
          return {y, last};
        }
      };
      row.theirs = [=](W w, T x) -> Tensors {
        Tensors flat;
        for (int64_t l = 0; l < 2; ++l) {
          for (const char* side : {"", "_reverse"}) {
            if (*side != 0 && !both) continue;
            for (const char* part : {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"})
              flat.push_back(w.at(part + std::to_string(l) + side));
          }
        }
        std::vector<Tensors> parts(lstm ? 3 : 2);
        for (int64_t b = 0; b < 3; ++b) {
          const int64_t n = lengths[static_cast<size_t>(b)];
          Tensors state;
          for (size_t i = 1; i < x.size(); ++i)
            state.push_back(x[i].slice(1, b, b + 1).contiguous());
          Tensors made = theirs(x[0].slice(0, b, b + 1).slice(1, 0, n), state, flat, both);
          made[0] = torch::constant_pad_nd(made[0], {0, 0, 0, 5 - n});
          for (size_t i = 0; i < made.size(); ++i) parts[i].push_back(made[i]);
        }
        Tensors out;
        for (size_t i = 0; i < parts.size(); ++i)
          out.push_back(torch::cat(parts[i], i == 0 ? 0 : 1));
        return out;
      };
      t.push_back(row);
    }
  }
}

std::vector<ModuleCase> make_module_table() {
  torch::manual_seed(1);
  std::vector<ModuleCase> t;
  add_layers(t);
  add_images(t);
  add_attention(t);
  add_transformers(t);
  add_recurrent<LSTM>(t, "LSTM", [](const at::Tensor& x, T state, T flat, bool both) -> Tensors {
    auto [y, h, c] = torch::lstm(x, state, flat, true, 2, 0.0, false, both, true);
    return {y, h, c};
  });
  add_recurrent<GRU>(t, "GRU", [](const at::Tensor& x, T state, T flat, bool both) -> Tensors {
    auto [y, h] = torch::gru(x, state[0], flat, true, 2, 0.0, false, both, true);
    return {y, h};
  });
  add_recurrent<SimpleRNN>(
      t, "SimpleRNN", [](const at::Tensor& x, T state, T flat, bool both) -> Tensors {
        auto [y, h] = torch::rnn_tanh(x, state[0], flat, true, 2, 0.0, false, both, true);
        return {y, h};
      });
  t.push_back(module_row(
      "SimpleRNN", "relu", SimpleRNN(3, 4, {}, "relu"), {randn({2, 5, 3})},
      [](const SimpleRNN& m, V x) { return m(x[0]).first; },
      [](W w, T x) {
        return std::get<0>(torch::rnn_relu(
            x[0], torch::zeros({1, 2, 4}, at::kDouble),
            {w.at("weight_ih_l0"), w.at("weight_hh_l0"), w.at("bias_ih_l0"), w.at("bias_hh_l0")},
            true, 1, 0.0, false, false, true));
      }));
  return t;
}

}  // namespace

const std::vector<ModuleCase>& module_table() {
  static const std::vector<ModuleCase> table = make_module_table();
  return table;
}

}  // namespace lathe::test
