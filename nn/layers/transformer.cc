#include "nn/layers/transformer.h"

#include "autograd/recompute.h"
#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {

FeedForward::FeedForward(int64_t channels, bool bias)
    : up(channels, 4 * channels, bias), down(4 * channels, channels, bias, Role::residual_weight) {}

Variable FeedForward::operator()(const Variable& x, const Variable& residual) const {
  ModuleCall call(*this, {{'C', up.weight.size(1)}});
  call.input(x, "... C");
  call.input("residual", residual, "... C");
  const auto fused = [this](const Variable& in) { return linear_gelu(in, up.weight, up.bias); };
  const Variable h = up.has_adapter() ? gelu(up(x)) : up.with_input(x, fused);
  return call.result(down(h, residual), "... C");
}

SwiGLU::SwiGLU(int64_t channels, int64_t hidden, bool bias)
    : up(channels, 2 * hidden, bias), down(hidden, channels, bias, Role::residual_weight) {}

Variable SwiGLU::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'C', up.weight.size(1)}});
  call.input(x, "... C");
  return call.result(down(swiglu(up(x))), "... C");
}

GatedFeedForward::GatedFeedForward(int64_t channels, int64_t hidden, const std::string& activation_)
    : gate(channels, hidden, false),
      up(channels, hidden, false),
      down(hidden, channels, false, Role::residual_weight),
      activation(activation_) {
  LATHE_CHECK(activation == "silu" || activation == "gelu",
              "GatedFeedForward: no activation is called ", activation,
              "; it supports silu and gelu");
}

Variable GatedFeedForward::operator()(const Variable& x, const Variable& residual) const {
  ModuleCall call(*this, {{'C', up.weight.size(1)}});
  call.input(x, "... C");
  call.input("residual", residual, "... C");
  const bool adapted = gate.has_adapter() || up.has_adapter();
  Variable h;
  if (activation == "gelu") {
    const auto fused = [this](const Variable& in) { return linear_gelu(in, gate.weight); };
    h = (gate.has_adapter() ? gelu(gate(x)) : gate.with_input(x, fused)) * up(x);
  } else {
    const auto fused = [this](const Variable& in) {
      return linear_swiglu(in, gate.weight, up.weight);
    };
    h = adapted ? silu(gate(x)) * up(x) : gate.with_input(x, fused);
  }
  return call.result(down(h, residual), "... C");
}

namespace {

int64_t inner_of(const TransformerOptions& o) { return o.n_inner > 0 ? o.n_inner : 4 * o.n_embd; }

/// Returns the residual stream after a branch f: norm(x + f(x)), or x + f(norm(x)).
template <class F>
Variable branch(const Variable& x, const LayerNorm& norm, bool norm_first, const Dropout& drop,
                F&& f) {
  return norm_first ? x + drop(f(norm(x))) : norm(x + drop(f(x)), /*wide=*/true);
}

}  // namespace

TransformerFeedForward::TransformerFeedForward(const TransformerOptions& o)
    : linear1(o.n_embd, inner_of(o) * (o.activation == "swiglu" ? 2 : 1), o.bias),
      linear2(inner_of(o), o.n_embd, o.bias, Role::residual_weight),
      drop(o.dropout),
      activation(o.activation) {
  LATHE_CHECK(activation == "relu" || activation == "gelu" || activation == "swiglu",
              "TransformerFeedForward: no activation is called ", activation,
              "; it supports relu, gelu and swiglu");
}

Variable TransformerFeedForward::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'C', linear1.weight.size(1)}});
  call.input(x, "... C");
  const Variable h = linear1(x);

  const Variable active = activation == "relu"   ? relu(h)
                          : activation == "gelu" ? gelu(h, Gelu::exact)
                                                 : swiglu(h);
  return call.result(linear2(drop(active)), "... C");
}

TransformerEncoderLayer::TransformerEncoderLayer(const TransformerOptions& o)
    : self_attn(o.n_embd, o.n_head, o.bias, o.dropout),
      feed_forward(o),
      norm1(o.n_embd, o.bias),
      norm2(o.n_embd, o.bias),
      drop1(o.dropout),
      drop2(o.dropout),
      norm_first(o.norm_first) {}

void TransformerEncoderLayer::visit(Visit& v) {
  v("self_attn", self_attn);
  v.into(feed_forward);  // the paths are linear1 and linear2, as in torch
  v("norm1", norm1);
  v("norm2", norm2);
  v("dropout1", drop1);
  v("dropout2", drop2);
}

Variable TransformerEncoderLayer::operator()(const Variable& x_BTC,
                                             const AttentionMask& mask) const {
  ModuleCall call(*this, {{'C', self_attn.q.weight.size(1)}});
  call.input(x_BTC, "B T C");
  const Variable h = branch(x_BTC, norm1, norm_first, drop1,
                            [&](const Variable& x) { return self_attn(x, mask); });
  return call.result(branch(h, norm2, norm_first, drop2, feed_forward), "B T C");
}

TransformerDecoderLayer::TransformerDecoderLayer(const TransformerOptions& o)
    : self_attn(o.n_embd, o.n_head, o.bias, o.dropout),
      multihead_attn(o.n_embd, o.n_head, o.bias, o.dropout),
      feed_forward(o),
      norm1(o.n_embd, o.bias),
      norm2(o.n_embd, o.bias),
      norm3(o.n_embd, o.bias),
      drop1(o.dropout),
      drop2(o.dropout),
      drop3(o.dropout),
      norm_first(o.norm_first) {}

void TransformerDecoderLayer::visit(Visit& v) {
  v("self_attn", self_attn);
  v("multihead_attn", multihead_attn);
  v.into(feed_forward);
  v("norm1", norm1);
  v("norm2", norm2);
  v("norm3", norm3);
  v("dropout1", drop1);
  v("dropout2", drop2);
  v("dropout3", drop3);
}

Variable TransformerDecoderLayer::operator()(const Variable& x_BTC, const Variable& memory_BSC,
                                             const AttentionMask& mask,
                                             const AttentionMask& memory_mask) const {
  ModuleCall call(*this, {{'C', self_attn.q.weight.size(1)}});
  call.input(x_BTC, "B T C");
  call.input("memory", memory_BSC, "B S C");
  Variable h = branch(x_BTC, norm1, norm_first, drop1,
                      [&](const Variable& x) { return self_attn(x, mask); });
  h = branch(h, norm2, norm_first, drop2, [&](const Variable& x) {
    return multihead_attn(x, memory_BSC, memory_BSC, memory_mask);
  });
  return call.result(branch(h, norm3, norm_first, drop3, feed_forward), "B T C");
}

TransformerEncoder::TransformerEncoder(int64_t n_layer, const TransformerOptions& o) {
  for (int64_t i = 0; i < n_layer; ++i) layers.emplace_back(o);
  if (o.norm_first) norm.emplace(o.n_embd, o.bias);
}

Variable TransformerEncoder::operator()(const Variable& x_BTC, const AttentionMask& mask) const {
  ModuleCall call(*this);
  call.input(x_BTC, "B T C");
  const Variable y = run_blocks(layers.size(), x_BTC, [this, mask](size_t i, const Variable& x) {
    return layers[i](x, mask);
  });
  return call.result(norm ? (*norm)(y, /*wide=*/true) : y, "B T C");
}

TransformerDecoder::TransformerDecoder(int64_t n_layer, const TransformerOptions& o) {
  for (int64_t i = 0; i < n_layer; ++i) layers.emplace_back(o);
  if (o.norm_first) norm.emplace(o.n_embd, o.bias);
}

Variable TransformerDecoder::operator()(const Variable& x_BTC, const Variable& memory_BSC,
                                        const AttentionMask& mask,
                                        const AttentionMask& memory_mask) const {
  ModuleCall call(*this);
  call.input(x_BTC, "B T C");
  call.input("memory", memory_BSC, "B S C");
  const Variable y = run_blocks(layers.size(), x_BTC, [=, this](size_t i, const Variable& x) {
    return layers[i](x, memory_BSC, mask, memory_mask);
  });
  return call.result(norm ? (*norm)(y, /*wide=*/true) : y, "B T C");
}

}  // namespace lathe
