#include "nn/layers.h"

#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "core/memory.h"

namespace lathe {
namespace {

Variable new_parameter(at::IntArrayRef sizes) {
  const MemoryScope scope(Memory::parameters);
  return Variable::parameter(at::zeros(sizes, at::kFloat));
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias, Role role_)
    : weight(new_parameter({out, in})), bias(with_bias ? new_parameter({out}) : Variable()), role(role_) {}

Embedding::Embedding(int64_t rows, int64_t channels) : weight(new_parameter({rows, channels})) {}

LayerNorm::LayerNorm(int64_t channels, bool with_bias)
    : weight(new_parameter({channels})), bias(with_bias ? new_parameter({channels}) : Variable()) {}

CausalSelfAttention::CausalSelfAttention(int64_t channels, int64_t heads_, bool bias)
    : qkv(channels, 3 * channels, bias), proj(channels, channels, bias, Role::residual_weight), heads(heads_) {
  LATHE_CHECK(channels % heads == 0, "CausalSelfAttention: ", channels, " channels do not divide into ", heads,
              " heads");
}

Variable CausalSelfAttention::operator()(const Variable& x_BTC) const {
  check_shape("CausalSelfAttention", x_BTC.data(), "B T C", {{'C', qkv.weight.size(1)}});
  return proj(attention(qkv(x_BTC), heads));
}

FeedForward::FeedForward(int64_t channels, bool bias)
    : up(channels, 4 * channels, bias), down(4 * channels, channels, bias, Role::residual_weight) {}

Sequential mlp(const std::vector<int64_t>& sizes) {
  Sequential model;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) model.add([](const Variable& x) { return relu(x); });
    model.add(Linear(sizes[i], sizes[i + 1], /*with_bias=*/true));
  }
  return model;
}

}  // namespace lathe
