#include "nn/layers.h"

#include "core/error.h"
#include "core/mode.h"

namespace lathe {

Linear::Linear(int64_t in, int64_t out, bool with_bias, const Role& role_)
    : weight(new_parameter({out, in})), bias(with_bias ? new_parameter({out}) : Variable()), role(role_) {}

Variable Linear::operator()(const Variable& x, const Variable& residual) const {
  const Variable y = linear(x, weight, bias, residual);
  return lora_a.defined() ? y + linear(linear(x, lora_a), lora_b) * lora_scale : y;
}

void Linear::add_adapter(int64_t rank, double alpha, at::TensorOptions options) {
  lora_a = Variable::parameter(at::zeros({rank, weight.size(1)}, options), "");
  lora_b = Variable::parameter(at::zeros({weight.size(0), rank}, options), "");
  lora_scale = alpha / static_cast<double>(rank);
}

void Linear::merge_adapter() {
  weight.data().add_(lora_b.data().matmul(lora_a.data()), lora_scale);
  lora_a = lora_b = {};
}

Embedding::Embedding(int64_t rows, int64_t channels, const Role& role_)
    : weight(new_parameter({rows, channels})), role(role_) {}

LayerNorm::LayerNorm(int64_t channels, bool with_bias)
    : weight(new_parameter({channels})), bias(with_bias ? new_parameter({channels}) : Variable()) {}

Variable LayerNorm::operator()(const Variable& x) const {
  const bool low = mode().compute != at::kFloat && !mode().fp8 && x.dtype() != at::kDouble;
  return layer_norm(x, weight, bias, eps, low ? std::optional(mode().compute) : std::nullopt);
}

CausalSelfAttention::CausalSelfAttention(int64_t channels, int64_t heads_, bool bias)
    : qkv(channels, 3 * channels, bias), proj(channels, channels, bias, Role::residual_weight), heads(heads_) {
  LATHE_CHECK(channels % heads == 0, "CausalSelfAttention: ", channels, " channels do not divide into ", heads,
              " heads");
}

Variable CausalSelfAttention::operator()(const Variable& x_BTC, const Variable& residual) const {
  check_shape("CausalSelfAttention", x_BTC.data(), "B T C", {{'C', qkv.weight.size(1)}});
  return proj(attention(qkv(x_BTC), heads), residual);
}

FeedForward::FeedForward(int64_t channels, bool bias)
    : up(channels, 4 * channels, bias), down(4 * channels, channels, bias, Role::residual_weight) {}

Variable FeedForward::operator()(const Variable& x, const Variable& residual) const {
  return down(up.has_adapter() ? gelu(up(x)) : linear_gelu(x, up.weight, up.bias), residual);
}

Sequential mlp(const std::vector<int64_t>& sizes) {
  Sequential model;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) model.add([](const Variable& x) { return relu(x); });
    model.add(Linear(sizes[i], sizes[i + 1], /*with_bias=*/true));
  }
  return model;
}

}  // namespace lathe
