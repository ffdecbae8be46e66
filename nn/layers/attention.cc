#include "nn/layers/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/tensor_cut.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/mode.h"
#include "dist/context_ranks.h"
#include "dist/sequence_ranks.h"
#include "nn/layers/cache.h"
#include "nn/module_call.h"

namespace lathe {

namespace {

/// Returns how many of a layer's heads this process computes. `weight`: the weight of the
/// projection that computes the heads.
int64_t heads_here(int64_t heads, const Variable& weight) {
  const TensorCut* cut = cut_of(weight);
  if (cut == nullptr)
    require_whole_rows("attention", "cut its weights (layer_cuts()), or set the key to false");
  return cut == nullptr ? heads : heads / cut->parts;
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(int64_t channels, int64_t heads_, bool bias)
    : qkv(channels, 3 * channels, bias),
      proj(channels, channels, bias, Role::residual_weight),
      heads(heads_) {
  LATHE_CHECK(heads >= 1 && channels % heads == 0, "CausalSelfAttention: ", channels,
              " channels can't be divided equally into ", heads, " heads");
}

Variable CausalSelfAttention::operator()(const Variable& x_BTC, const Variable& residual,
                                         const at::Tensor& starts) const {
  ModuleCall call(*this, {{'C', qkv.weight.size(1)}});
  call.input(x_BTC, "B T C");
  call.input("residual", residual, "B T C");
  const Variable packed = qkv(x_BTC);
  const int64_t own = heads_here(heads, qkv.weight);
  const int64_t width = packed.size(2) / 3;
  const auto attended = [&] {
    if (KeyValueCache* cache = mode().cache) {
      const auto parts = packed.data().split(width, 2);
      return cache->attend(this, Variable(parts[0]), Variable(parts[1]), Variable(parts[2]), own,
                           own);
    }
    if (mode().position_part != nullptr) {
      return attention_of_context_ranks(slice(packed, 2, 0, width),
                                        slice(packed, 2, width, 3 * width), own, own, starts);
    }
    return attention(packed, own, starts);
  };
  return call.result(proj(attended(), residual), "B T C");
}

Rotary::Rotary(int64_t width_, double base_, const RotaryScaling& scaling_)
    : width(width_), base(base_), scaling(scaling_) {
  LATHE_CHECK(width > 0 && width % 2 == 0, "Rotary: a head has ", width,
              " channels, but their number must be even");
}

Variable Rotary::operator()(const Variable& x_BHTD, int64_t first) const {
  ModuleCall call(*this, {{'D', width}});
  call.input(x_BHTD, "B H T D");
  const int64_t t = call.size('T'), half = width / 2;
  const at::Tensor table_TD =
      rope_table(
          at::arange(first, first + t, at::TensorOptions(at::kLong).device(x_BHTD.data().device())))
          .to(x_BHTD.dtype());
  const Variable cos(table_TD.slice(1, 0, half)), sin(table_TD.slice(1, half));
  const Variable a = slice(x_BHTD, 3, 0, half), b = slice(x_BHTD, 3, half, width);
  return call.result(cat({a * cos - b * sin, b * cos + a * sin}, 3), "B H T D");
}

at::Tensor Rotary::frequencies(at::Device device) const {
  const at::Tensor pairs = at::arange(width / 2, at::TensorOptions(at::kDouble).device(device));
  at::Tensor plain = at::pow(base, pairs * (-2.0 / static_cast<double>(width)));

  switch (scaling.kind) {
    case RotaryScaling::Kind::none: return plain;
    case RotaryScaling::Kind::linear: return plain / scaling.factor;
    case RotaryScaling::Kind::llama3: break;
    case RotaryScaling::Kind::yarn: {
      // Returns the real-valued index of the pair of channels that makes `waves` rotations within
      // the original context (Peng et al., section 3.2).
      const auto pair_of = [&](double waves) {
        return static_cast<double>(width) *
               std::log(scaling.original_context / (waves * 2 * M_PI)) / (2 * std::log(base));
      };

      // Pairs below `first` rotate fast and keep their frequencies. The frequencies of pairs above
      // `last` are divided by the factor. The frequencies of pairs in between are blended.
      double first = pair_of(scaling.high), last = pair_of(scaling.low);
      if (scaling.truncate) {
        first = std::floor(first);
        last = std::ceil(last);
      }
      first = std::max(first, 0.0);
      last = std::min(last, static_cast<double>(width - 1));
      const at::Tensor slowed =
          ((pairs - first) / (last == first ? 1e-3 : last - first)).clamp(0, 1);
      return plain * (1 - slowed + slowed / scaling.factor);
    }
  }
  // llama3 blends by the number of rotations within the original context. The frequency of pairs
  // with `low` or fewer rotations is divided by the factor; pairs with `high` or more keep their
  // frequencies.
  const at::Tensor waves = plain * (scaling.original_context / (2 * M_PI));
  const at::Tensor kept = ((waves - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1);
  return plain * (kept + (1 - kept) / scaling.factor);
}

at::Tensor Rotary::rope_table(const at::Tensor& places) const {
  const at::Tensor angles = places.to(at::kDouble).unsqueeze(-1) * frequencies(places.device());
  at::Tensor made = at::cat({at::cos(angles), at::sin(angles)}, -1);
  if (scaling.kind != RotaryScaling::Kind::yarn) return made;
  return made * (scaling.attention_factor > 0 ? scaling.attention_factor
                                              : 0.1 * std::log(scaling.factor) + 1);
}

GroupedQueryAttention::GroupedQueryAttention(int64_t channels, int64_t heads_, int64_t kv_heads_,
                                             int64_t width, bool bias,
                                             std::optional<double> norm_eps, bool norms_all)
    : q(channels, heads_ * width, bias),
      k(channels, kv_heads_ * width, bias),
      v(channels, kv_heads_ * width, bias),
      proj(heads_ * width, channels, false, Role::residual_weight),
      heads(heads_),
      kv_heads(kv_heads_) {
  LATHE_CHECK(heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0,
              "GroupedQueryAttention: ", heads, " query heads can't be divided equally among ",
              kv_heads, " key heads");
  if (!norm_eps) return;
  q_norm.emplace(norms_all ? heads * width : width, *norm_eps);
  k_norm.emplace(norms_all ? kv_heads * width : width, *norm_eps);
}

Variable GroupedQueryAttention::operator()(const Variable& x_BTC, const at::Tensor& rope_table,
                                           const Variable& residual,
                                           const at::Tensor& starts) const {
  const int64_t own = heads_here(heads, q.weight), own_kv = heads_here(kv_heads, k.weight);
  const int64_t width = q.weight.size(0) / own;
  ModuleCall call(*this, {{'C', q.weight.size(1)}, {'D', width}});
  call.input(x_BTC, "B T C");
  call.input("residual", residual, "B T C");
  // In a block whose positions are divided among processes, x has only some of the positions, but
  // the table has all of them. The shape of the table is therefore not checked.
  if (rope_table.defined() && mode().sequence_part == nullptr)
    call.input("rope_table", rope_table, rope_table.dim() == 3 ? "B T D" : "T D");
  const bool adapted = q.has_adapter() || k.has_adapter() || v.has_adapter();
  const auto fused = [this](const Variable& in) {
    return linear_qkv(in, {q.weight, k.weight, v.weight}, {q.bias, k.bias, v.bias});
  };
  const auto [q_, k_, v_BTG] =
      adapted ? std::array{q(x_BTC), k(x_BTC), v(x_BTC)} : q.with_input(x_BTC, fused);
  const auto normed = [&](const Variable& y, const std::optional<RMSNorm>& norm) {
    if (!norm) return y;
    // Each tensor rank normalizes some of the heads with the same weight, so the gradient of the
    // weight must be summed over the ranks.
    const Variable weight = own < heads ? parameter_of_cut_outputs(norm->weight) : norm->weight;
    if (weight.size(0) == y.size(2)) return norm->with_weight(y, weight);
    return reshape(
        norm->with_weight(reshape(y, {y.size(0), y.size(1), y.size(2) / width, width}), weight),
        y.sizes());
  };
  const auto rotated = [&](const Variable& y) {
    return rope_table.defined() ? rotate(y, rope_table) : y;
  };
  const Variable q_BTR = normed(q_, q_norm), k_BTG = normed(k_, k_norm);
  const auto attended = [&] {
    if (KeyValueCache* cache = mode().cache)
      return cache->attend(this, rotated(q_BTR), rotated(k_BTG), v_BTG, own, own_kv, scores);
    if (mode().position_part != nullptr) {
      return attention_of_context_ranks(rotated(q_BTR), cat({rotated(k_BTG), v_BTG}, 2), own,
                                        own_kv, starts, scores);
    }
    return attention(q_BTR, k_BTG, v_BTG, own, own_kv, starts, rope_table, scores);
  };
  return call.result(proj(attended(), residual), "B T C");
}

MultiHeadAttention::MultiHeadAttention(int64_t channels, int64_t heads_, bool bias, double dropout,
                                       std::optional<int64_t> key_channels,
                                       std::optional<int64_t> value_channels)
    : q(channels, channels, bias),
      k(key_channels.value_or(channels), channels, bias),
      v(value_channels.value_or(channels), channels, bias),
      out_proj(channels, channels, bias, Role::residual_weight),
      drop(dropout),
      heads(heads_) {
  LATHE_CHECK(heads >= 1 && channels % heads == 0, "MultiHeadAttention: ", channels,
              " channels can't be divided equally into ", heads, " heads");
}

Variable MultiHeadAttention::operator()(const Variable& query, const Variable& key,
                                        const Variable& value, const AttentionMask& mask) const {
  ModuleCall call(*this,
                  {{'C', q.weight.size(1)}, {'K', k.weight.size(1)}, {'V', v.weight.size(1)}});

  call.input("query", query, "B T C");
  call.input("key", key, "B S K");
  call.input("value", value, "B S V");
  call.input("padding", mask.padding, "B S");
  require_whole_rows("MultiHeadAttention", "set the key to false");
  if (mask.hidden.defined())
    call.input("hidden", mask.hidden, mask.hidden.dim() == 2 ? "T S" : "B T S");

  const int64_t b = call.size('B'), t = call.size('T'), s = call.size('S'), c = call.size('C');

  LATHE_CHECK(!mask.causal || t == s, call.text(),
              ": a causal mask needs as many keys as queries, but there are ", s, " keys and ", t,
              " queries");

  const bool masked = mask.hidden.defined() || mask.padding.defined();
  if (mask.causal && !masked && !drop.active() && !rotary)  // attention() supports this case
    return call.result(out_proj(attention(cat({q(query), k(key), v(value)}, -1), heads)), "B T C");

  const auto split_heads = [&](const Variable& x, int64_t places) {
    return transpose(reshape(x, {b, places, heads, c / heads}), 1, 2);
  };
  Variable q_BHTD = split_heads(q(query), t), k_BHSD = split_heads(k(key), s);
  if (rotary) {
    q_BHTD = (*rotary)(q_BHTD);
    k_BHSD = (*rotary)(k_BHSD);
  }

  at::Tensor unseen, added;  // bool and floating-point masks that broadcast to [B, H, T, S]
  if (mask.padding.defined()) unseen = mask.padding.to(at::kBool).unsqueeze(1).unsqueeze(1);
  if (mask.hidden.defined()) {
    const at::Tensor hidden = mask.hidden.dim() == 3 ? mask.hidden.unsqueeze(1) : mask.hidden;
    if (hidden.scalar_type() != at::kBool)
      added = hidden;
    else
      unseen = unseen.defined() ? unseen.logical_or(hidden) : hidden;
  }

  AttentionOptions options;
  options.is_causal = mask.causal;
  options.dropout = drop.p;
  options.stream = drop.stream;
  // AttentionOptions has only one mask. A bool mask is true where a query may see a key; in a
  // floating-point mask, -infinity hides a key.
  if (added.defined() && unseen.defined())
    options.mask = Variable(added.masked_fill(unseen, -std::numeric_limits<double>::infinity()));
  else if (added.defined())
    options.mask = Variable(added);
  else if (unseen.defined())
    options.mask = Variable(unseen.logical_not());

  const Variable y_BHTD =
      scaled_dot_product_attention(q_BHTD, k_BHSD, split_heads(v(value), s), options);
  return call.result(out_proj(reshape(transpose(y_BHTD, 1, 2), {b, t, c})), "B T C");
}

}  // namespace lathe
