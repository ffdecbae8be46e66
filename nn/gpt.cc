#include "nn/gpt.h"

#include <ATen/ops/arange.h>

#include "core/dtype.h"
#include "core/error.h"
#include "nn/init.h"

namespace lathe {

Block::Block(const ModelConfig& c)
    : norm1(c.n_embd, c.bias),
      attn(c.n_embd, c.n_head, c.bias),
      norm2(c.n_embd, c.bias),
      mlp(c.n_embd, c.bias),
      attn_drop(c.dropout),
      mlp_drop(c.dropout) {
  if (c.lora == 0) return;
  for (Linear* layer : linears()) layer->add_adapter(c.lora, c.lora_alpha);
}

Variable Block::operator()(const Variable& x_BTC) const {
  // Without dropout the residual is added where a branch's last product is written.
  const Variable h_BTC = attn_drop.active() ? x_BTC + attn_drop(attn(norm1(x_BTC))) : attn(norm1(x_BTC), x_BTC);
  return mlp_drop.active() ? h_BTC + mlp_drop(mlp(norm2(h_BTC))) : mlp(norm2(h_BTC), h_BTC);
}

GPT::GPT(const ModelConfig& c)
    : config(c),
      tokens(c.vocab_size, c.n_embd, c.tie_weights ? Role::tied_embedding : Role::embedding),
      positions(c.block_size, c.n_embd),
      drop(c.dropout),
      norm(c.n_embd, c.bias) {
  for (int64_t i = 0; i < c.n_layer; ++i) blocks.emplace_back(c);
  if (!c.tie_weights) head = Linear(c.n_embd, c.vocab_size, /*with_bias=*/false);
  place(*this);
}

Variable GPT::features(const at::Tensor& ids_BT) const {
  check_shape("GPT", ids_BT, "B T");
  const int64_t t = ids_BT.size(1);
  LATHE_CHECK(t <= config.block_size, "GPT: ", t, " tokens are longer than the context of ", config.block_size);
  Variable x_BTC = drop(tokens(ids_BT) + slice(positions.weight, 0, 0, t));
  for (const auto& block : blocks) x_BTC = block(x_BTC);
  return norm(x_BTC);
}

Variable GPT::operator()(const at::Tensor& ids_BT) const { return linear(features(ids_BT), head_weight()); }

Variable GPT::loss(const at::Tensor& ids_BT, const at::Tensor& targets_BT, double divisor) const {
  check_shape("GPT loss targets", targets_BT, "B T", {{'B', ids_BT.size(0)}, {'T', ids_BT.size(1)}});
  const Variable rows_NC = reshape(features(ids_BT), {-1, config.n_embd});
  return linear_cross_entropy(rows_NC, head_weight(), targets_BT.reshape({-1}), divisor);
}

void GPT::merge_adapters() {
  for (auto& block : blocks) {
    for (Linear* layer : block.linears()) layer->merge_adapter();
  }
  config.lora = 0;
}

GPT make_gpt(const ModelConfig& config, uint64_t seed) {
  GPT model(config);
  initialize(parameters(model), init_from_config(config.init), config.n_layer, seed);
  return model;
}

namespace {

/// Of qkv, proj, up and down: rank times (in + out) each.
int64_t adapter_count(const ModelConfig& c) { return c.n_layer * c.lora * (4 + 2 + 5 + 5) * c.n_embd; }

}  // namespace

int64_t parameter_count(const ModelConfig& c) {
  const int64_t n = c.n_embd, bias = c.bias ? 1 : 0;
  const int64_t block = 12 * n * n + bias * 9 * n + 2 * (1 + bias) * n;
  return c.vocab_size * n * (c.tie_weights ? 1 : 2) + c.block_size * n + c.n_layer * block + (1 + bias) * n +
         adapter_count(c);
}

double flops_per_token(const ModelConfig& c) {
  const int64_t unused = c.block_size * c.n_embd + (c.tie_weights ? 0 : c.vocab_size * c.n_embd);
  const int64_t multiplied = parameter_count(c) - unused, trained = c.lora > 0 ? adapter_count(c) : multiplied;
  return 6.0 * static_cast<double>(trained) + 4.0 * static_cast<double>(multiplied - trained) +
         12.0 * static_cast<double>(c.n_layer) * static_cast<double>(c.n_embd) * static_cast<double>(c.block_size);
}

}  // namespace lathe
