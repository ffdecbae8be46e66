#include "nn/layers/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <limits>

#include "autograd/ops/attention.h"
#include "core/dtype.h"
#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {

CausalSelfAttention::CausalSelfAttention(int64_t channels, int64_t heads_, bool bias)
    : qkv(channels, 3 * channels, bias), proj(channels, channels, bias, Role::residual_weight), heads(heads_) {
  LATHE_CHECK(channels % heads == 0, "CausalSelfAttention: ", channels, " channels do not divide into ", heads,
              " heads");
}

Variable CausalSelfAttention::operator()(const Variable& x_BTC, const Variable& residual) const {
  ModuleCall call(*this, {{'C', qkv.weight.size(1)}});
  call.input(x_BTC, "B T C"), call.input("residual", residual, "B T C");
  return call.result(proj(attention(qkv(x_BTC), heads), residual), "B T C");
}

Rotary::Rotary(int64_t width_, double base_) : width(width_), base(base_) {
  LATHE_CHECK(width > 0 && width % 2 == 0, "Rotary: ", width, " channels of a head; they must be even");
}

Variable Rotary::operator()(const Variable& x_BHTD, int64_t first) const {
  ModuleCall call(*this, {{'D', width}});
  call.input(x_BHTD, "B H T D");
  const int64_t t = call.size('T'), half = width / 2;
  const at::TensorOptions wide = x_BHTD.data().options().dtype(at::kDouble);
  const at::Tensor angles_TD = at::outer(at::arange(first, first + t, wide),
                                         at::pow(base, at::arange(half, wide) * (-2.0 / static_cast<double>(width))));
  const Variable cos(at::cos(angles_TD).to(x_BHTD.dtype())), sin(at::sin(angles_TD).to(x_BHTD.dtype()));
  const Variable a = slice(x_BHTD, 3, 0, half), b = slice(x_BHTD, 3, half, width);
  return call.result(cat({a * cos - b * sin, b * cos + a * sin}, 3), "B H T D");
}

MultiHeadAttention::MultiHeadAttention(int64_t channels, int64_t heads_, bool bias, double dropout,
                                       std::optional<int64_t> key_channels, std::optional<int64_t> value_channels)
    : q(channels, channels, bias),
      k(key_channels.value_or(channels), channels, bias),
      v(value_channels.value_or(channels), channels, bias),
      out_proj(channels, channels, bias, Role::residual_weight),
      drop(dropout),
      heads(heads_) {
  LATHE_CHECK(heads >= 1 && channels % heads == 0, "MultiHeadAttention: ", channels, " channels do not divide into ",
              heads, " heads");
}

Variable MultiHeadAttention::operator()(const Variable& query, const Variable& key, const Variable& value,
                                        const AttentionMask& mask) const {
  ModuleCall call(*this, {{'C', q.weight.size(1)}, {'K', k.weight.size(1)}, {'V', v.weight.size(1)}});
  call.input("query", query, "B T C"), call.input("key", key, "B S K"), call.input("value", value, "B S V");
  call.input("padding", mask.padding, "B S");
  if (mask.hidden.defined()) call.input("hidden", mask.hidden, mask.hidden.dim() == 2 ? "T S" : "B T S");
  const int64_t b = call.size('B'), t = call.size('T'), s = call.size('S'), c = call.size('C');
  LATHE_CHECK(!mask.causal || t == s, call.text(), ": a causal mask is for as many keys as queries, not ", s, " and ",
              t);
  const bool masked = mask.hidden.defined() || mask.padding.defined();
  if (mask.causal && !masked && !drop.active() && !rotary)  // what the fused kernel takes
    return call.result(out_proj(attention(cat({q(query), k(key), v(value)}, -1), heads)), "B T C");

  const auto split_heads = [&](const Variable& x, int64_t places) {
    return transpose(reshape(x, {b, places, heads, c / heads}), 1, 2);
  };
  Variable q_BHTD = split_heads(q(query), t), k_BHSD = split_heads(k(key), s);
  if (rotary) q_BHTD = (*rotary)(q_BHTD), k_BHSD = (*rotary)(k_BHSD);

  at::Tensor unseen, added;  // bool and floating point, broadcast to [B, H, T, S]
  if (mask.padding.defined()) unseen = mask.padding.to(at::kBool).unsqueeze(1).unsqueeze(1);
  if (mask.hidden.defined()) {
    const at::Tensor hidden = mask.hidden.dim() == 3 ? mask.hidden.unsqueeze(1) : mask.hidden;
    if (hidden.scalar_type() != at::kBool)
      added = hidden;
    else
      unseen = unseen.defined() ? unseen.logical_or(hidden) : hidden;
  }
  AttentionOptions options;
  options.is_causal = mask.causal, options.dropout = drop.p, options.stream = drop.stream;
  if (added.defined() && unseen.defined())
    options.mask = Variable(added.masked_fill(unseen, -std::numeric_limits<double>::infinity()));
  else if (added.defined())
    options.mask = Variable(added);
  else if (unseen.defined())
    options.mask = Variable(unseen.logical_not());
  const Variable y_BHTD = scaled_dot_product_attention(q_BHTD, k_BHSD, split_heads(v(value), s), options);
  return call.result(out_proj(reshape(transpose(y_BHTD, 1, 2), {b, t, c})), "B T C");
}

}  // namespace lathe
