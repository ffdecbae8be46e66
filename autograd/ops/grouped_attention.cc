// Implements causal attention on separate projections [B, T, H D]: with Lathe's kernel on CPUs,
// with the kernels of attention_gpu.h on GPUs, and composed of other ops where no kernel applies.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "autograd/ops/attention.h"
#include "autograd/ops/attention_gpu.h"
#include "autograd/ops/causal.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/rotary.h"
#include "autograd/saved_packer.h"
#include "core/dtype.h"
#include "core/kernels/attention.h"
#include "core/mode.h"

namespace lathe {
namespace {

/// Returns the first key that each query sees in a window, [B, T]: no earlier than the query's
/// start, if `starts` is defined. Returns `starts` if there is no window or the window covers all
/// keys.
at::Tensor window_starts(const at::Tensor& starts, int64_t window, const Variable& q,
                         int64_t keys) {
  if (window == 0 || window >= keys) return starts;
  const auto options = at::TensorOptions(at::kLong).device(q.data().device());
  const at::Tensor first = at::arange(keys - q.size(1), keys, options) - (window - 1);
  return at::maximum(starts.defined() ? starts : at::zeros({q.size(0), 1}, options), first);
}

/// Returns keys or values [B, S, K D] as [B, H, S, D]: each head is repeated for H / K heads of
/// queries.
Variable repeated(const Variable& x, int64_t heads, int64_t kv_heads) {
  const int64_t b = x.size(0), s = x.size(1), d = x.size(2) / kv_heads;
  const Variable split = reshape(x, {b, s, kv_heads, 1, d});
  return transpose(reshape(expand(split, {b, s, kv_heads, heads / kv_heads, d}), {b, s, heads, d}),
                   1, 2);
}
/// Joins the heads: [B, H, T, D] -> [B, T, H D].
Variable joined(const Variable& y) {
  return reshape(transpose(y, 1, 2), {y.size(0), y.size(2), y.size(1) * y.size(3)});
}
/// Computes the same result as GroupedAttention, composed of other ops.
Variable composed_attention(const Variable& q, const Variable& k, const Variable& v, int64_t heads,
                            int64_t kv_heads, const at::Tensor& starts,
                            const ScoreOptions& scores) {
  const int64_t b = q.size(0), t = q.size(1), s = k.size(1);
  AttentionOptions o;
  o.softcap = scores.softcap;
  if (scores.scale > 0) o.scale = scores.scale;
  o.mask = Variable(attention_mask(t, s, starts, q.data().device()).logical_not());
  const Variable q_BHTD = transpose(reshape(q, {b, t, heads, q.size(2) / heads}), 1, 2);
  return joined(scaled_dot_product_attention(q_BHTD, repeated(k, heads, kv_heads),
                                             repeated(v, heads, kv_heads), o));
}

// Computes attention on separate projections, by Lathe's kernel on CPUs and by the kernels of
// attention_gpu.h on GPUs. There may be fewer heads of keys and values than of queries, and more
// keys than queries.
struct GroupedAttention {
  static constexpr OpInfo info{.name = "grouped_attention", .amp = Amp::low};
  int64_t heads, kv_heads;
  ScoreOptions scores{};  // `starts` already accounts for the window
  int64_t longest_document = 0;
  Saved document_begins{};  // DocumentBounds::begins on a GPU, whose kernels apply the window
  // starts int64 [B, T]; rope_table float32 [T, D] or [B, T, D]; either may be undefined.
  Saved starts{}, rope_table{};
  Needs<3> needs{};
  Saved q = Saved::input(0), k = Saved::input(1), v = Saved::input(2), out = Saved::output(), lse{},
        seed{}, offset{};
  // Whether backward computes `out` and `lse` again instead of keeping them, because q, k and v are
  // kept rounded (see Attention).
  bool attends_again = false;

  static AttentionShape shape(at::IntArrayRef query, at::IntArrayRef key, int64_t heads,
                              int64_t kv_heads) {
    const int64_t width = query[2] / heads;
    return {.batch = query[0],
            .time = query[1],
            .heads = heads,
            .width = width,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width))),
            .kv_heads = kv_heads,
            .keys = key[1]};
  }
  AttentionShape shape() const {
    AttentionShape s = shape(q.data().sizes(), k.data().sizes(), heads, kv_heads);
    if (scores.scale > 0) s.scale = static_cast<float>(scores.scale);
    s.softcap = static_cast<float>(scores.softcap);
    if (starts.defined()) s.starts = starts.data().const_data_ptr<int64_t>();
    if (rope_table.defined()) {
      s.rope_table = rope_table.data().const_data_ptr<float>();
      s.rope_rows = rope_table.data().numel() / s.width;
    }
    return s;
  }
  static HeadRows rows_of(const at::Tensor& t) {
    return {t.const_data_ptr(), t.stride(1), t.stride(0)};
  }
  static at::Tensor readable(const at::Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); }

  // P = softmax(mask(cap(q k^T scale))), y = P v, for each head and the keys and values of its
  // group; q and k are rotated first if there is a rope_table
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    q = readable(query);
    k = readable(key);
    v = readable(value);
    const bool records = needs[0] || needs[1] || needs[2];
    const Attended a = attend(records);
    attends_again = saves_rounded();
    if (records && !attends_again) {
      out = a.out;
      lse = a.lse;
      seed = a.seed;
      offset = a.offset;
    }
    return a.out;
  }
  // dv = P^T dy, dP = dy v^T, dS = P (dP - sum(P dP)) cap', dq = dS k scale, dk = dS^T q scale;
  // dk and dv are summed over a group; dq and dk are rotated back
  Grads<3> backward(const at::Tensor& dy_, Needs<3>) const {
    const at::Tensor dy = dy_.contiguous();
    const Attended a = attends_again ? attend(/*records=*/true)
                                     : Attended{.out = out.data(),
                                                .lse = lse.data(),
                                                .seed = seed.data(),
                                                .offset = offset.data()};
    if (dy.is_cuda()) return backward_on_gpu(dy, a);
    const auto empty_for = [&](const at::Tensor& t) {  // [B, T or S, H D]
      return at::empty({t.size(0), t.size(1), q.data().size(2)}, t.options());
    };
    const at::Tensor dq = empty_for(q.data()), dk = empty_for(k.data()), dv = empty_for(v.data());
    attention_backward(shape(), element_of(dy.scalar_type()), rows_of(q.data()), rows_of(k.data()),
                       rows_of(v.data()), a.out.const_data_ptr(), dy.const_data_ptr(),
                       a.lse.const_data_ptr<float>(), rows_of(dq), rows_of(dk), rows_of(dv));
    for (const at::Tensor& t : {dq, dk, dv}) bump_version(t);
    return {dq, grouped(dk), grouped(dv)};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needed) const {
    return plain_gradients<3>(
        {q.as<Variable>(), k.as<Variable>(), v.as<Variable>()}, needed, {dy},
        [this](const std::vector<Variable>& in) {
          const auto wide = [&](const Variable& x) {
            return rope_table.defined() ? rotate(wide_of(x), rope_table.data()) : wide_of(x);
          };
          return std::vector{composed_attention(wide(in[0]), wide(in[1]), wide_of(in[2]), heads,
                                                kv_heads, starts.data(), scores)};
        });
  }
  OpFlops flops(const at::Tensor& query, const at::Tensor& key, const at::Tensor&,
                const at::Tensor& y) const {
    // A query sees about S - T / 2 keys on average. Count twice as many: the counts of the parts of
    // a sequence then add up to the count of the complete sequence, in which all keys count for
    // each query. With a window, the counts of the first parts are too small.
    const int64_t keys = 2 * key.size(1) - query.size(1);
    OpFlops all =
        attention_flops(y, scores.window > 0 ? std::min(keys, scores.window) : keys, heads);
    const double rotation =
        rope_table.defined() ? 3.0 * static_cast<double>(query.numel() + key.numel()) : 0;
    all.forward.other += rotation;
    all.backward.other += rotation;
    return all;
  }

 private:
  /// Sums the gradients of a group of heads: [B, S, H D] -> [B, S, K D].
  at::Tensor grouped(const at::Tensor& d) const {
    if (heads == kv_heads) return d;
    const int64_t b = d.size(0), s = d.size(1), width = d.size(2) / heads;
    return d.view({b, s, kv_heads, heads / kv_heads, width}).sum(3).view({b, s, kv_heads * width});
  }

  GpuAttention gpu_options() const {
    return {.scale = shape().scale,
            .window = scores.window,
            .documents = {document_begins.data(), longest_document}};
  }
  /// Separates heads that are side by side: [B, T, H D] -> [B, T, H, D].
  static at::Tensor split(const at::Tensor& t, int64_t heads) {
    return t.unflatten(2, {heads, t.size(2) / heads});
  }
  /// Runs the kernel on q, k and v. `out` is [B, T, H D]. On a CPU, `lse` is undefined unless
  /// `records` is true.
  Attended attend(bool records) const {
    if (q.data().is_cuda()) {
      Attended a = gpu_attention(split(q.data(), heads), split(k.data(), kv_heads),
                                 split(v.data(), kv_heads), gpu_options());
      a.out = a.out.flatten(2);
      return a;
    }
    Attended a{.out = at::empty(q.data().sizes(), q.data().options())};
    const at::Tensor& y = a.out;
    if (records) a.lse = at::empty({y.size(0), heads, y.size(1)}, y.options().dtype(at::kFloat));
    attention_forward(shape(), element_of(y.scalar_type()), rows_of(q.data()), rows_of(k.data()),
                      rows_of(v.data()), y.mutable_data_ptr(),
                      records ? a.lse.mutable_data_ptr<float>() : nullptr);
    bump_version(y);
    return a;
  }
  Grads<3> backward_on_gpu(const at::Tensor& dy, Attended a) const {
    a.out = split(a.out, heads);
    std::array<std::vector<at::Tensor>, 3> parts;
    for (const auto& d :
         gpu_attention_backward(split(dy, heads), split(q.data(), heads), split(k.data(), kv_heads),
                                split(v.data(), kv_heads), a, gpu_options())) {
      for (size_t i = 0; i < 3; ++i) parts[i].push_back(d[i].flatten(2));
    }
    const auto joined = [&](size_t i) {
      return parts[i].size() == 1 ? parts[i].front() : at::cat(parts[i]);
    };
    return {joined(0), joined(1), joined(2)};
  }
};

}  // namespace

Variable attention(const Variable& q, const Variable& k, const Variable& v, int64_t heads,
                   int64_t kv_heads, const at::Tensor& starts, const at::Tensor& rope_table,
                   const ScoreOptions& scores) {
  require_defined("attention", {&q, &k, &v});
  const auto sentence = [&](const char* what) {
    return str("attention(", describe(q.data()), ", ", describe(k.data()), ", ", describe(v.data()),
               "): ", what);
  };

  LATHE_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
              sentence("the number of key heads must divide the number of query heads, not "),
              kv_heads, " and ", heads);
  LATHE_CHECK(q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() && q.size(0) == k.size(0) &&
                  q.size(2) > 0 && q.size(2) % heads == 0 &&
                  k.size(2) == q.size(2) / heads * kv_heads && k.size(1) >= q.size(1),
              sentence("needs [B, T, H D], [B, S, K D] and [B, S, K D], S at least T, for "), heads,
              " and ", kv_heads, " heads");
  LATHE_CHECK(!rope_table.defined() || k.size(1) == q.size(1),
              sentence("rope_table needs as many keys as queries"));
  LATHE_CHECK(!rope_table.defined() || rope_table.size(-1) == q.size(2) / heads,
              sentence("rope_table must be as wide as a head"));

  LATHE_CHECK(scores.window >= 0 && scores.scale >= 0 && std::isfinite(scores.scale) &&
                  scores.softcap >= 0 && std::isfinite(scores.softcap),
              sentence("window, scale and softcap must be finite and at least 0, not "),
              scores.window, ", ", scores.scale, " and ", scores.softcap);

  const at::Tensor own_starts = checked_starts(starts, q.size(0), q.size(1), k.size(1) - q.size(1));
  const at::Tensor checked = window_starts(own_starts, scores.window, q, k.size(1));

  // The kernel is chosen before apply() casts, so determine the dtype that autocast will give the
  // op.
  const bool autocast = mode().compute != at::kFloat;
  const at::ScalarType dtype = autocast_dtype(q);
  const bool alike = autocast || (k.dtype() == dtype && v.dtype() == dtype);

  if (q.data().is_cpu() && q.numel() > 0 && alike && dtype != at::kDouble && kernel_dtype(dtype) &&
      attention_ready(GroupedAttention::shape(q.sizes(), k.sizes(), heads, kv_heads),
                      element_of(dtype))) {
    const at::Tensor angles = rope_table.defined() ? checked_rope_table(rope_table, q) : rope_table;
    return apply(GroupedAttention{.heads = heads,
                                  .kv_heads = kv_heads,
                                  .scores = scores,
                                  .starts = checked,
                                  .rope_table = angles},
                 q, k, v);
  }

  // The other kernels do not rotate queries and keys, so rotate them first.
  if (rope_table.defined())
    return attention(rotate(q, rope_table), rotate(k, rope_table), v, heads, kv_heads, starts, {},
                     scores);

  if (q.data().is_cuda() && q.numel() > 0 && alike && scores.softcap == 0 &&
      gpu_attention_ready(dtype, q.size(2) / heads)) {
    const DocumentBounds documents = k.size(1) == q.size(1)
                                         ? gpu_document_bounds(own_starts, q, q.size(2) / heads)
                                         : DocumentBounds{};
    if (!own_starts.defined() || documents.begins.defined())
      return apply(GroupedAttention{.heads = heads,
                                    .kv_heads = kv_heads,
                                    .scores = scores,
                                    .longest_document = documents.longest,
                                    .document_begins = documents.begins,
                                    .starts = checked},
                   q, k, v);
  }

  // If no kernel applies, repeat keys and values for their queries.
  if (k.size(1) != q.size(1) || scores.scale > 0 || scores.softcap > 0)
    return composed_attention(q, k, v, heads, kv_heads, checked, scores);
  return attention(
      cat({q, joined(repeated(k, heads, kv_heads)), joined(repeated(v, heads, kv_heads))}, 2),
      heads, checked);
}

}  // namespace lathe
