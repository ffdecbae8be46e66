#include "nn/models/llama.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/recompute.h"
#include "core/error.h"
#include "core/mode.h"
#include "nn/layers/documents.h"
#include "nn/models/residual.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

RotaryScaling scaling_of(const LlamaConfig& c) {
  using Kind = RotaryScaling::Kind;
  const bool yarn = c.rope_scaling == "yarn";
  return {.kind = c.rope_scaling == "linear"   ? Kind::linear
                  : c.rope_scaling == "llama3" ? Kind::llama3
                  : yarn                       ? Kind::yarn
                                               : Kind::none,
          .factor = c.rope_factor,
          .low = yarn ? c.rope_beta_slow : c.rope_low_freq_factor,
          .high = yarn ? c.rope_beta_fast : c.rope_high_freq_factor,
          .original_context = static_cast<double>(c.rope_original_context),
          .attention_factor = c.rope_attention_factor,
          .truncate = c.rope_truncate};
}

/// Returns x + drop(branch). If there is a norm, it normalizes the branch's output before dropout.
template <class Branch>
Variable add_normed(const Variable& x, const std::optional<RMSNorm>& norm, const Dropout& drop,
                    Branch&& branch) {
  if (!norm) return add_branch(x, drop, branch);
  return x + drop((*norm)(branch(Variable())));
}

/// Returns the first fault in the keys that set the rotary positions and windows of blocks, or in
/// qk_norm_over.
std::optional<ConfigFault> check_patterns(const LlamaConfig& c) {
  for (const auto& [key, pattern] :
       {std::pair("rope_layers", c.rope_layers), {"window_layers", c.window_layers}}) {
    if (pattern.empty() || pattern.find_first_not_of("01") != std::string::npos)
      return ConfigFault{{key},
                         str("model.", key, " = \"", pattern,
                             "\" must be made of the digits 1 and 0; the pattern repeats over all "
                             "blocks")};
  }

  if (c.sliding_window == 0 && c.window_layers != "1")
    return ConfigFault{{"window_layers", "sliding_window"},
                       str("model.window_layers = \"", c.window_layers,
                           "\" has no effect without model.sliding_window; set "
                           "model.sliding_window too, or leave model.window_layers out")};
  if (c.sliding_window == 0 && c.rope_local_theta != 0)
    return ConfigFault{{"rope_local_theta", "sliding_window"},
                       str("model.rope_local_theta = ", c.rope_local_theta,
                           " has no effect without model.sliding_window; set model.sliding_window "
                           "too, or leave model.rope_local_theta out")};

  if (c.rope_local_theta != 0 && c.rope_local_theta < 1)
    return ConfigFault{{"rope_local_theta"},
                       str("model.rope_local_theta = ", c.rope_local_theta,
                           " must be at least 1, or 0 for model.rope_theta")};
  if (c.sliding_window > 0 && c.window_layers.find('1') == std::string::npos)
    return ConfigFault{{"sliding_window", "window_layers"},
                       str("model.sliding_window = ", c.sliding_window,
                           " has no effect with model.window_layers = \"", c.window_layers,
                           "\", which selects no block for it; leave one of them out")};

  if (!c.qk_norm && c.qk_norm_over != "head")
    return ConfigFault{{"qk_norm_over", "qk_norm"},
                       str("model.qk_norm_over = \"", c.qk_norm_over,
                           "\" has no effect without model.qk_norm = true; set model.qk_norm too, "
                           "or leave model.qk_norm_over out")};
  return std::nullopt;
}

}  // namespace

LlamaBlock::LlamaBlock(const LlamaConfig& c, int64_t index)
    : attn(c.n_embd, c.n_head, c.kv_heads(), c.head_width(), c.qkv_bias,
           c.qk_norm ? std::optional(c.norm_eps) : std::nullopt, c.qk_norm_over == "projection"),
      mlp(c.n_embd, c.hidden(), c.activation),
      attn_drop(c.dropout),
      mlp_drop(c.dropout) {
  if (c.norm_position != "post") {
    norm1.emplace(c.n_embd, c.norm_eps);
    norm2.emplace(c.n_embd, c.norm_eps);
  }
  if (c.norm_position != "pre") {
    post_norm1.emplace(c.n_embd, c.norm_eps);
    post_norm2.emplace(c.n_embd, c.norm_eps);
  }
  attn.scores = {.window = c.has_window(index) ? c.sliding_window : 0,
                 .scale = c.query_pre_attn_scalar > 0 ? 1 / std::sqrt(c.query_pre_attn_scalar) : 0,
                 .softcap = c.attention_softcap};
}

Variable LlamaBlock::operator()(const Variable& x_BTC, const at::Tensor& rope_table,
                                const at::Tensor& starts) const {
  ModuleCall call(*this, {{'C', attn.q.weight.size(1)}});
  call.input(x_BTC, "B T C");
  const auto normed = [](const Variable& x, const std::optional<RMSNorm>& norm) {
    return norm ? (*norm)(x) : x;
  };
  const Variable h_BTC = add_normed(x_BTC, post_norm1, attn_drop, [&](const Variable& residual) {
    return attn(normed(x_BTC, norm1), rope_table, residual, starts);
  });
  return call.result(
      add_normed(h_BTC, post_norm2, mlp_drop,
                 [&](const Variable& residual) { return mlp(normed(h_BTC, norm2), residual); }),
      "B T C");
}

Llama::Llama(const LlamaConfig& c)
    : config(c),
      rotary(c.head_width(), c.rope_theta, scaling_of(c)),
      tokens(c.vocab_size, c.n_embd, c.tie_weights ? Role::tied_embedding : Role::embedding),
      drop(c.dropout),
      norm(c.n_embd, c.norm_eps) {
  if (c.rope_local_theta > 0) local_rotary.emplace(c.head_width(), c.rope_local_theta);
  for (int64_t i = 0; i < c.n_layer; ++i) blocks.emplace_back(c, i);
  if (!c.tie_weights) head = Linear(c.n_embd, c.vocab_size, /*with_bias=*/false, Role::head);
  assign_random_streams(*this);
}

Variable Llama::features(const at::Tensor& ids_BT) const {
  ModuleCall call(*this, {{'C', config.n_embd}});
  call.input("ids", ids_BT, "B T");
  const int64_t t = ids_BT.size(1);
  LATHE_CHECK(t <= config.block_size, "Llama: ", t, " tokens exceed the context of ",
              config.block_size);

  const at::Tensor starts = document_starts();
  at::Tensor positions = token_positions(t, ids_BT.device());
  if (!positions.defined()) positions = at::arange(t, ids_BT.options());
  const at::ScalarType wide = tokens.weight.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rope_table = rotary.rope_table(positions).to(wide);
  const at::Tensor local_table =
      local_rotary ? local_rotary->rope_table(positions).to(wide) : rope_table;

  const auto run = [this, rope_table, local_table, starts](size_t i, const Variable& x) {
    const auto block = static_cast<int64_t>(i);
    const at::Tensor table = !config.has_rope(block)    ? at::Tensor()
                             : config.has_window(block) ? local_table
                                                        : rope_table;
    return blocks[i](x, table, starts);
  };

  const Variable embedded = config.scale_embeddings
                                ? tokens(ids_BT) * std::sqrt(static_cast<double>(config.n_embd))
                                : tokens(ids_BT);
  return call.result(norm(run_blocks(blocks.size(), drop(embedded), run)), "B T C");
}

Variable Llama::operator()(const at::Tensor& ids_BT) const {
  return head_logits(features(ids_BT), head_weight(), config.logit_softcap);
}

double Llama::flops_per_unit() const {
  int64_t keys = 0;  // number of keys that a query sees, summed over all blocks
  for (int64_t i = 0; i < config.n_layer; ++i) {
    keys += config.has_window(i) ? std::min(config.sliding_window, config.block_size)
                                 : config.block_size;
  }
  return matmul_flops(parameters(*this)) +
         12.0 * static_cast<double>(keys) *
             static_cast<double>(config.n_head * config.head_width());
}

std::optional<ConfigFault> Llama::check(const LlamaConfig& c) {
  if (c.head_dim == 0 && c.n_embd % c.n_head != 0) {
    return ConfigFault{{"n_embd", "n_head"},
                       str("model.n_embd = ", c.n_embd, " is not divisible by model.n_head = ",
                           c.n_head, "; change one of them, or set model.head_dim")};
  }

  if (c.head_width() % 2 != 0) {
    return ConfigFault{{"n_embd", "n_head", "head_dim"},
                       str("a head has ", c.head_width(),
                           " channels (model.head_dim, or model.n_embd / model.n_head), but rotary "
                           "positions rotate pairs of channels; the number must be even")};
  }

  if (c.n_head % c.kv_heads() != 0) {
    return ConfigFault{{"n_head", "n_kv_head"},
                       str("model.n_head = ", c.n_head, " is not divisible by model.n_kv_head = ",
                           c.n_kv_head, "; change one of them")};
  }

  // Rotary::frequencies() divides by the difference of these two keys, so they must differ.
  if (c.rope_scaling == "llama3" && c.rope_low_freq_factor >= c.rope_high_freq_factor) {
    return ConfigFault{
        {"rope_low_freq_factor", "rope_high_freq_factor"},
        str("model.rope_low_freq_factor = ", c.rope_low_freq_factor,
            " must be below model.rope_high_freq_factor = ", c.rope_high_freq_factor)};
  }

  if (c.rope_scaling == "yarn" && c.rope_theta <= 1) {
    return ConfigFault{
        {"rope_theta", "rope_scaling"},
        "model.rope_scaling = \"yarn\" needs model.rope_theta above 1, so that angles differ"};
  }

  if (c.rope_scaling == "yarn" && c.rope_beta_slow >= c.rope_beta_fast) {
    return ConfigFault{{"rope_beta_slow", "rope_beta_fast"},
                       str("model.rope_beta_slow = ", c.rope_beta_slow,
                           " must be below model.rope_beta_fast = ", c.rope_beta_fast)};
  }

  if (c.rope_scaling == "none" && c.rope_factor != 1) {
    return ConfigFault{
        {"rope_factor", "rope_scaling"},
        str("model.rope_factor = ", c.rope_factor,
            " has no effect with model.rope_scaling = \"none\"; set model.rope_scaling to linear, "
            "llama3 or yarn, or leave model.rope_factor out")};
  }

  return check_patterns(c);
}

std::vector<LayerCut> Llama::layer_cuts(const LlamaConfig& c) {
  std::vector<LayerCut> rules{
      {.layers = "tokens"},
      {.layers = "blocks.*.attn.q", .units = c.n_head, .unit = "heads (model.n_head)"},
      {.layers = "blocks.*.attn.proj", .dim = 1},
      {.layers = "blocks.*.mlp.gate"},
      {.layers = "blocks.*.mlp.up"},
      {.layers = "blocks.*.mlp.down", .dim = 1}};
  for (const char* layer : {"blocks.*.attn.k", "blocks.*.attn.v"})
    rules.push_back({.layers = layer,
                     .units = c.kv_heads(),
                     .unit = "heads of keys and values (model.n_kv_head)"});
  if (!c.tie_weights) rules.push_back({.layers = "head"});
  // A norm of all heads together needs the channels of all heads, so it can't be cut: units = 1.
  if (c.qk_norm && c.qk_norm_over == "projection")
    rules.push_back({.layers = "blocks.*.attn.q_norm",
                     .units = 1,
                     .unit = "group of channels that model.qk_norm_over = \"projection\" "
                             "normalizes"});
  return rules;
}

std::optional<LlamaConfig> Llama::scale_down(const LlamaConfig& config) {
  LlamaConfig c = config;
  if (halve(c.n_layer, 2) || halve(c.block_size, 512) || halve(c.vocab_size, 8192)) return c;
  if (c.n_embd <= 64 && c.n_head * c.head_width() <= 64 && c.n_inner <= 256) return std::nullopt;

  // Reduce heads of keys and values together with the heads of queries, so that each head of keys
  // and values still serves the same number of query heads.
  int64_t kv_heads = c.kv_heads(), head_width = c.head_width();
  const int64_t group = c.n_head / kv_heads;
  if (halve(kv_heads, 1)) {
    c.n_head = kv_heads * group;
    if (c.n_kv_head > 0) c.n_kv_head = kv_heads;
  } else if (!halve(c.n_head, 1)) {
    head_width = half_width(head_width);
  }

  if (c.head_dim > 0) {
    c.head_dim = head_width;
    c.n_embd = half_width(c.n_embd);
  } else {
    c.n_embd = c.n_head * head_width;
  }
  if (c.n_inner > 0) c.n_inner = half_width(c.n_inner);
  return c;
}

}  // namespace lathe
