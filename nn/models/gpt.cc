#include "nn/models/gpt.h"

#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/mode.h"
#include "nn/layers/documents.h"
#include "nn/models/residual.h"
#include "nn/module_call.h"

namespace lathe {

Block::Block(const GPTConfig& c)
    : norm1(c.n_embd, c.bias),
      attn(c.n_embd, c.n_head, c.bias),
      norm2(c.n_embd, c.bias),
      mlp(c.n_embd, c.bias),
      attn_drop(c.dropout),
      mlp_drop(c.dropout) {}

Variable Block::operator()(const Variable& x_BTC, const at::Tensor& starts) const {
  ModuleCall call(*this, {{'C', norm1.weight.size(0)}});
  call.input(x_BTC, "B T C");
  const Variable h_BTC = add_branch(x_BTC, attn_drop, [&](const Variable& residual) {
    return attn(norm1(x_BTC), residual, starts);
  });
  return call.result(
      add_branch(h_BTC, mlp_drop,
                 [&](const Variable& residual) { return mlp(norm2(h_BTC), residual); }),
      "B T C");
}

GPT::GPT(const GPTConfig& c)
    : config(c),
      tokens(c.vocab_size, c.n_embd, c.tie_weights ? Role::tied_embedding : Role::embedding),
      positions(c.block_size, c.n_embd),
      drop(c.dropout),
      norm(c.n_embd, c.bias) {
  for (int64_t i = 0; i < c.n_layer; ++i) blocks.emplace_back(c);
  if (!c.tie_weights) head = Linear(c.n_embd, c.vocab_size, /*with_bias=*/false, Role::head);
  assign_random_streams(*this);
}

Variable GPT::features(const at::Tensor& ids_BT) const {
  ModuleCall call(*this, {{'C', config.n_embd}});
  call.input("ids", ids_BT, "B T");
  const int64_t t = ids_BT.size(1);
  LATHE_CHECK(t <= config.block_size, "GPT: ", t, " tokens exceed the context of ",
              config.block_size);
  const at::Tensor starts = document_starts();
  const at::Tensor position_ids = token_positions(t, ids_BT.device());
  const Variable places =
      position_ids.defined() ? positions(position_ids) : slice(positions.weight, 0, 0, t);
  const Variable x_BTC =
      run_blocks(blocks.size(), drop(tokens(ids_BT) + places),
                 [this, starts](size_t i, const Variable& x) { return blocks[i](x, starts); });
  return call.result(norm(x_BTC), "B T C");
}

Variable GPT::operator()(const at::Tensor& ids_BT) const {
  return head_logits(features(ids_BT), head_weight(), /*softcap=*/0);
}

double GPT::flops_per_unit() const {
  return matmul_flops(parameters(*this)) + 12.0 * static_cast<double>(config.n_layer) *
                                               static_cast<double>(config.n_embd) *
                                               static_cast<double>(config.block_size);
}

std::optional<ConfigFault> GPT::check(const GPTConfig& c) {
  if (c.n_embd % c.n_head == 0) return std::nullopt;
  return ConfigFault{{"n_embd", "n_head"},
                     str("model.n_embd = ", c.n_embd,
                         " is not divisible by model.n_head = ", c.n_head, "; change one of them")};
}

std::vector<LayerCut> GPT::layer_cuts(const GPTConfig& c) {
  std::vector<LayerCut> rules{{.layers = "tokens"},
                              {.layers = "blocks.*.attn.qkv",
                               .sections = 3,
                               .units = c.n_head,
                               .unit = "heads (model.n_head)"},
                              {.layers = "blocks.*.attn.proj", .dim = 1},
                              {.layers = "blocks.*.mlp.up"},
                              {.layers = "blocks.*.mlp.down", .dim = 1}};
  if (!c.tie_weights) rules.push_back({.layers = "head"});
  return rules;
}

std::optional<GPTConfig> GPT::scale_down(const GPTConfig& config) {
  GPTConfig c = config;
  if (halve(c.n_layer, 2) || halve(c.block_size, 512) || halve(c.vocab_size, 8192)) return c;
  if (c.n_embd <= 64) return std::nullopt;

  const int64_t head_width = c.n_embd / c.n_head;
  if (halve(c.n_head, 1)) {
    c.n_embd = c.n_head * head_width;
  } else {
    c.n_embd = half_width(c.n_embd);
  }
  return c;
}

}  // namespace lathe
