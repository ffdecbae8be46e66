// Causal scaled dot-product attention on packed projections. q, k and v are views of the packed
// tensor, [B, H, T, D].
//
// On CUDA: the kernels of attention_gpu.h, and the composed form for float64, for capped scores,
// for starts that are not those of documents and for head sizes that the kernels do not support. On
// CPUs: Lathe's kernel, then ATen's flash kernel, and the composed form for float64.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "autograd/ops/attention_gpu.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/rotary.h"
#include "core/device.h"
#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/kernels/attention.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

/// Counts complete scores, which is the convention in publications, although the causal kernels
/// skip masked blocks: `keys` of each query.
OpFlops attention_flops(const at::Tensor& y, int64_t keys, int64_t heads) {
  const auto t = static_cast<double>(keys), n = static_cast<double>(y.numel());
  const double scores = t * n / (static_cast<double>(y.size(2)) / static_cast<double>(heads));
  return {.forward = {4 * t * n, 5 * scores}, .backward = {8 * t * n, 4 * scores}};
}

/// Returns which of the `keys` positions each of the last `time` positions must not see: bool [T,
/// S], or [B, 1, T, S] with starts.
at::Tensor attention_mask(int64_t time, int64_t keys, const at::Tensor& starts, at::Device device) {
  at::Tensor future =
      at::ones({time, keys}, at::TensorOptions(at::kBool).device(device)).triu(keys - time + 1);
  if (!starts.defined()) return future;
  const at::Tensor places = at::arange(keys, starts.options());
  return future.logical_or(places < starts.view({starts.size(0), 1, time, 1}));
}

/// Returns starts [B, T] as the kernel reads them. Throws unless they are int64 and, on the CPU,
/// never decrease along a row and are not after their positions, which begin at `first`.
at::Tensor checked_starts(const at::Tensor& starts, int64_t batch, int64_t time,
                          int64_t first = 0) {
  if (!starts.defined()) return starts;
  LATHE_CHECK(starts.scalar_type() == at::kLong && starts.sizes() == at::IntArrayRef({batch, time}),
              "attention: starts must be int64 [", batch, ", ", time, "], not ", describe(starts));
  if (!starts.is_cpu() || is_dry_run()) return starts;
  at::Tensor there = starts.contiguous();
  const int64_t* at = there.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < batch; ++row) {
    for (int64_t t = 0, before = 0; t < time; before = *at, ++t, ++at) {
      LATHE_CHECK(*at >= before && *at <= first + t, "attention: position ", t, " of row ", row,
                  " has the start ", *at,
                  "; starts must not decrease along a row or be after their positions");
    }
  }
  return there;
}

/// Returns the first key that each query sees in a window, [B, T]: no earlier than its start, if
/// there are starts. A window of all keys changes nothing.
at::Tensor window_starts(const at::Tensor& starts, int64_t window, const Variable& q,
                         int64_t keys) {
  if (window == 0 || window >= keys) return starts;
  const auto options = at::TensorOptions(at::kLong).device(q.data().device());
  const at::Tensor first = at::arange(keys - q.size(1), keys, options) - (window - 1);
  return at::maximum(starts.defined() ? starts : at::zeros({q.size(0), 1}, options), first);
}

// Shapes: B batch, T time, C channels, H heads, D = C / H.
struct Attention {
  static constexpr OpInfo info{.name = "attention", .amp = Amp::low};
  int64_t heads;
  int64_t longest_document = 0;
  Saved starts{}, document_begins{};  // [B, T]; DocumentPlaces on a GPU; or undefined
  Saved qkv = Saved::input(0), out = Saved::activation(), lse{}, seed{},
        offset{};  // in the composed form lse holds the probabilities

  enum class Kernel { own, cpu_flash, gpu, composed };

  Kernel kernel = Kernel::composed;

  Kernel choose() const {
    const at::Tensor& t = qkv.data();
    const int64_t d = t.size(2) / 3 / heads;
    if (t.scalar_type() == at::kDouble) return Kernel::composed;
    if (t.is_cpu()) {
      if (kernel_ready(t) && attention_ready(shape(), element_of(t.scalar_type())))
        return Kernel::own;
      if (starts.defined()) return Kernel::composed;
      // ATen's flash kernel can turn a NaN in q or k into zeros, which would hide a diverged run.
      return t.isnan().any().item<bool>() ? Kernel::composed : Kernel::cpu_flash;
    }
    const bool has_places = !starts.defined() || document_begins.defined();
    return has_places && gpu_attention_ready(t.scalar_type(), d) ? Kernel::gpu : Kernel::composed;
  }

  AttentionShape shape() const {
    const at::Tensor& t = qkv.data();
    return {.batch = t.size(0),
            .time = t.size(1),
            .heads = heads,
            .width = t.size(2) / 3 / heads,
            .scale = static_cast<float>(scale()),
            .starts = starts.defined() ? starts.data().const_data_ptr<int64_t>() : nullptr};
  }

  /// Returns q, k or v (i = 0, 1, 2) in the packed tensor, without a copy.
  static HeadRows rows_of(const at::Tensor& packed, int64_t i) {
    const int64_t c = packed.size(2) / 3;
    return {static_cast<const char*>(packed.const_data_ptr()) + i * c * packed.element_size(),
            3 * c, packed.size(1) * 3 * c};
  }
  at::Tensor part(const at::Tensor& packed, int64_t i) const {
    const int64_t b = packed.size(0), t = packed.size(1), c = packed.size(2) / 3;
    return packed.view({b, t, 3, heads, c / heads}).select(2, i).transpose(1, 2);
  }
  /// Joins the heads: [B, H, T, D] -> [B, T, C].
  static at::Tensor joined(const at::Tensor& y) {
    return y.transpose(1, 2).reshape({y.size(0), y.size(2), y.size(1) * y.size(3)});
  }
  /// Exchanges the dims of positions and heads of [B, T, H, D] or [B, H, T, D].
  static at::Tensor exchanged(const at::Tensor& t) { return t.transpose(1, 2); }
  /// Writes the gradients of q, k and v [B, T, H, D] into that of the packed tensor.
  void join(const at::Tensor& d_packed, const std::array<at::Tensor, 3>& gradients) const {
    std::array<const void*, 3> rows{};  // [B T, C]
    const int64_t bytes = d_packed.size(2) / 3 * static_cast<int64_t>(d_packed.element_size());
    bool is_ready = d_packed.is_cuda() && kernels_wanted() && bytes % 16 == 0;
    for (size_t i = 0; i < 3; ++i) {
      rows[i] = gradients[i].const_data_ptr();
      is_ready = is_ready && gradients[i].is_contiguous() &&
                 gradients[i].scalar_type() == d_packed.scalar_type() && is_aligned(rows[i], 16);
    }
    if (is_ready) {
      cuda_api().interleave(rows.data(), d_packed.mutable_data_ptr(),
                            d_packed.size(0) * d_packed.size(1), bytes);
      return bump_version(d_packed);
    }
    for (int64_t i = 0; i < 3; ++i)
      exchanged(part(d_packed, i)).copy_(gradients[static_cast<size_t>(i)]);
  }
  static at::Tensor wide(const at::Tensor& t) {
    return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
  }
  double scale() const {
    const int64_t head_size = qkv.data().size(2) / 3 / heads;
    return 1 / std::sqrt(static_cast<double>(head_size));
  }

  GpuAttention gpu_options() const {
    return {.scale = scale(), .documents = {document_begins.data(), longest_document}};
  }

  // P = softmax(mask(q k^T / sqrt(D))), y = P v
  at::Tensor forward(const at::Tensor& packed) {
    LATHE_CHECK(heads > 0, heads, " heads; at least one is needed");
    LATHE_CHECK(packed.dim() == 3 && packed.size(2) > 0 && packed.size(2) % (3 * heads) == 0,
                "needs [B, T, 3C] with C a multiple of ", heads, " heads");

    qkv = packed.contiguous();
    if (packed.numel() == 0) return packed.slice(2, 0, packed.size(2) / 3).clone();

    kernel = choose();
    if (kernel == Kernel::own) {
      at::Tensor y =
          at::empty({packed.size(0), packed.size(1), packed.size(2) / 3}, packed.options());
      lse = at::empty({packed.size(0), heads, packed.size(1)}, packed.options().dtype(at::kFloat));
      attention_forward(shape(), element_of(y.scalar_type()), rows_of(qkv.data(), 0),
                        rows_of(qkv.data(), 1), rows_of(qkv.data(), 2), y.mutable_data_ptr(),
                        lse.data().mutable_data_ptr<float>());
      // The kernel writes by pointer, which ATen does not notice.
      bump_version(y);
      out = y;
      return y;
    }

    const at::Tensor q = part(qkv.data(), 0), k = part(qkv.data(), 1), v = part(qkv.data(), 2);

    switch (kernel) {
      case Kernel::own: break;
      case Kernel::cpu_flash: {
        auto [y, l] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                                      /*is_causal=*/true);
        out = y, lse = l;
        break;
      }
      case Kernel::gpu: {
        const GpuAttended a =
            gpu_attention(exchanged(q), exchanged(k), exchanged(v), gpu_options());
        out = exchanged(a.out), lse = a.lse, seed = a.seed, offset = a.offset;
        break;
      }
      case Kernel::composed: {
        // Low-precision inputs are widened first, so that scores and probabilities are float32 here
        // as in the flash kernels.
        const at::Tensor hidden = attention_mask(q.size(2), q.size(2), starts.data(), q.device());
        const at::Tensor scores = wide(q).matmul(wide(k).transpose(-2, -1)) * scale();
        lse = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
        return joined(lse.data().matmul(wide(v)).to(packed.scalar_type()));
      }
    }

    return joined(out.data());
  }
  // dv = P^T dy, dP = dy v^T, dS = P (dP - sum(P dP)), dq = dS k / sqrt(D), dk = dS^T q / sqrt(D)
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    const at::Tensor& packed = qkv.data();
    at::Tensor d_packed = at::empty_like(packed);
    if (packed.numel() == 0) return {d_packed};

    if (kernel == Kernel::own) {
      const at::Tensor d = dy.contiguous();
      attention_backward(shape(), element_of(d.scalar_type()), rows_of(packed, 0),
                         rows_of(packed, 1), rows_of(packed, 2), out.data().const_data_ptr(),
                         d.const_data_ptr(), lse.data().const_data_ptr<float>(),
                         rows_of(d_packed, 0), rows_of(d_packed, 1), rows_of(d_packed, 2));
      bump_version(d_packed);
      return {d_packed};
    }

    const at::Tensor q = part(packed, 0), k = part(packed, 1), v = part(packed, 2);
    const at::Tensor d_out =
        dy.contiguous()
            .view({packed.size(0), packed.size(1), heads, packed.size(2) / 3 / heads})
            .transpose(1, 2);

    at::Tensor dq, dk, dv;
    switch (kernel) {
      case Kernel::own: break;
      case Kernel::cpu_flash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k, v, out.data(), lse.data(), /*dropout_p=*/0.0, /*is_causal=*/true);
        break;
      case Kernel::gpu: {
        const GpuAttended a{exchanged(out.data()), lse.data(), seed.data(), offset.data()};
        int64_t begin = 0;
        for (const auto& d : gpu_attention_backward(exchanged(d_out), exchanged(q), exchanged(k),
                                                    exchanged(v), a, gpu_options())) {
          const int64_t count = d[0].size(0);
          join(d_packed.narrow(0, begin, count), d);
          begin += count;
        }
        return {d_packed};
      }
      case Kernel::composed: {
        const at::Tensor& p = lse.data();
        dv = p.transpose(-2, -1).matmul(wide(d_out));
        const at::Tensor dp = wide(d_out).matmul(wide(v).transpose(-2, -1));
        const at::Tensor ds = p * (dp - (p * dp).sum(-1, true)) * scale();
        dq = ds.matmul(wide(k));
        dk = ds.transpose(-2, -1).matmul(wide(q));
      }
    }

    join(d_packed, {exchanged(dq), exchanged(dk), exchanged(dv)});
    return {d_packed};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1> needs) const {
    const auto plain = [this](const std::vector<Variable>& in) {
      const int64_t b = in[0].size(0), t = in[0].size(1), c = in[0].size(2) / 3;
      const Variable split = reshape(wide_of(in[0]), {b, t, 3, heads, c / heads});
      const auto take = [&](int64_t i) { return transpose(select(split, 2, i), 1, 2); };
      const at::Tensor hidden = attention_mask(t, t, starts.data(), split.data().device());
      const Variable scores = matmul(take(0), transpose(take(1), -2, -1)) * scale();
      const Variable p =
          softmax(masked_fill(scores, hidden, -std::numeric_limits<double>::infinity()), -1);
      return std::vector{reshape(transpose(matmul(p, take(2)), 1, 2), {b, t, c})};
    };
    return plain_gradients<1>({qkv.as<Variable>()}, needs, {dy}, plain);
  }
  OpFlops flops(const at::Tensor& packed, const at::Tensor& y) const {
    return attention_flops(y, packed.size(1), heads);
  }
};

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
/// Computes the same as the grouped kernel, composed of other ops.
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

// Attention on separate projections, by Lathe's kernel on CPUs and by those of attention_gpu.h on
// GPUs. There may be fewer heads of keys and values than of queries, and more keys than queries.
struct GroupedAttention {
  static constexpr OpInfo info{.name = "grouped_attention", .amp = Amp::low};
  int64_t heads, kv_heads;
  ScoreOptions scores{};  // `starts` already accounts for the window
  int64_t longest_document = 0;
  Saved document_begins{};       // DocumentPlaces, on a GPU, whose kernels apply the window
  Saved starts{}, rope_table{};  // [B, T], [T, D] or [B, T, D] of float32, or undefined
  Needs<3> needs{};
  Saved q = Saved::input(0), k = Saved::input(1), v = Saved::input(2), out = Saved::output(), lse{},
        seed{}, offset{};

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
  // group, with q and k rotated
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    q = readable(query), k = readable(key), v = readable(value);
    if (query.is_cuda()) return forward_on_gpu();
    const bool records = needs[0] || needs[1] || needs[2];
    at::Tensor y = at::empty(query.sizes(), query.options());
    if (records) lse = at::empty({y.size(0), heads, y.size(1)}, y.options().dtype(at::kFloat));
    attention_forward(shape(), element_of(y.scalar_type()), rows_of(q.data()), rows_of(k.data()),
                      rows_of(v.data()), y.mutable_data_ptr(),
                      records ? lse.data().mutable_data_ptr<float>() : nullptr);
    bump_version(y);
    if (records) out = y;
    return y;
  }
  // dv = P^T dy, dP = dy v^T, dS = P (dP - sum(P dP)) cap', dq = dS k scale, dk = dS^T q scale;
  // dk and dv are summed over a group; dq and dk are rotated back
  Grads<3> backward(const at::Tensor& dy_, Needs<3>) const {
    const at::Tensor dy = dy_.contiguous();
    if (dy.is_cuda()) return backward_on_gpu(dy);
    const auto empty_for = [&](const at::Tensor& t) {  // with a head for each of the queries'
      return at::empty({t.size(0), t.size(1), q.data().size(2)}, t.options());
    };
    const at::Tensor dq = empty_for(q.data()), dk = empty_for(k.data()), dv = empty_for(v.data());
    attention_backward(shape(), element_of(dy.scalar_type()), rows_of(q.data()), rows_of(k.data()),
                       rows_of(v.data()), out.data().const_data_ptr(), dy.const_data_ptr(),
                       lse.data().const_data_ptr<float>(), rows_of(dq), rows_of(dk), rows_of(dv));
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
    // A query counts twice as many keys as it sees, so that the parts of a sequence add up to the
    // whole, each of whose queries counts all keys. With a window, the first parts count too few.
    const int64_t keys = 2 * key.size(1) - query.size(1);
    OpFlops all =
        attention_flops(y, scores.window > 0 ? std::min(keys, scores.window) : keys, heads);
    const double rotation =
        rope_table.defined() ? 3.0 * static_cast<double>(query.numel() + key.numel()) : 0;
    all.forward.other += rotation, all.backward.other += rotation;
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
  at::Tensor forward_on_gpu() {
    const GpuAttended a = gpu_attention(split(q.data(), heads), split(k.data(), kv_heads),
                                        split(v.data(), kv_heads), gpu_options());
    lse = a.lse, seed = a.seed, offset = a.offset;
    const at::Tensor y = a.out.flatten(2);
    out = y;
    return y;
  }
  Grads<3> backward_on_gpu(const at::Tensor& dy) const {
    const GpuAttended a{split(out.data(), heads), lse.data(), seed.data(), offset.data()};
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

/// Returns the dtype in which autocast passes x to an op of Amp::low.
at::ScalarType autocast_dtype(const Variable& x) {
  const bool autocast = mode().compute != at::kFloat;
  return autocast && x.dtype() != at::kDouble ? mode().compute : x.dtype();
}

/// Returns the documents of starts, if they are on a GPU that has a kernel for x with heads of that
/// width.
DocumentPlaces places_on_gpu(const at::Tensor& starts, const Variable& x, int64_t width) {
  const bool is_used = starts.defined() && starts.is_cuda() && starts.numel() > 0 &&
                       gpu_attention_ready(autocast_dtype(x), width);
  return is_used ? document_places(starts) : DocumentPlaces{};
}

}  // namespace

Variable attention(const Variable& qkv, int64_t heads, const at::Tensor& starts) {
  require_defined("attention", {&qkv});
  const at::Tensor checked =
      qkv.dim() == 3 ? checked_starts(starts, qkv.size(0), qkv.size(1)) : at::Tensor();
  const DocumentPlaces documents = checked.defined() && heads > 0
                                       ? places_on_gpu(checked, qkv, qkv.size(2) / 3 / heads)
                                       : DocumentPlaces{};
  return apply(Attention{.heads = heads,
                         .longest_document = documents.longest,
                         .starts = checked,
                         .document_begins = documents.begins},
               qkv);
}

Variable attention(const Variable& q, const Variable& k, const Variable& v, int64_t heads,
                   int64_t kv_heads, const at::Tensor& starts, const at::Tensor& rope_table,
                   const ScoreOptions& scores) {
  require_defined("attention", {&q, &k, &v});
  const auto sentence = [&](const char* what) {
    return str("attention(", describe(q.data()), ", ", describe(k.data()), ", ", describe(v.data()),
               "): ", what);
  };

  LATHE_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
              sentence("the number of key heads must divide that of query heads, not "), kv_heads,
              " and ", heads);
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
              sentence("needs a window, scale and softcap of 0 or more, not "), scores.window, ", ",
              scores.scale, " and ", scores.softcap);

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

  // Other kernels take queries and keys that are rotated.
  if (rope_table.defined())
    return attention(rotate(q, rope_table), rotate(k, rope_table), v, heads, kv_heads, starts, {},
                     scores);

  if (q.data().is_cuda() && q.numel() > 0 && alike && scores.softcap == 0 &&
      gpu_attention_ready(dtype, q.size(2) / heads)) {
    const DocumentPlaces documents =
        k.size(1) == q.size(1) ? places_on_gpu(own_starts, q, q.size(2) / heads) : DocumentPlaces{};
    if (!own_starts.defined() || documents.begins.defined())
      return apply(GroupedAttention{.heads = heads,
                                    .kv_heads = kv_heads,
                                    .scores = scores,
                                    .longest_document = documents.longest,
                                    .document_begins = documents.begins,
                                    .starts = checked},
                   q, k, v);
  }

  // Without a kernel, repeat keys and values for their queries.
  if (k.size(1) != q.size(1) || scores.scale > 0 || scores.softcap > 0)
    return composed_attention(q, k, v, heads, kv_heads, checked, scores);
  return attention(
      cat({q, joined(repeated(k, heads, kv_heads)), joined(repeated(v, heads, kv_heads))}, 2),
      heads, checked);
}

}  // namespace lathe
