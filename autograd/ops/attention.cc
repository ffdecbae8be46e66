// Implements causal scaled dot-product attention on packed projections. q, k and v are views of the
// packed tensor, [B, H, T, D].
//
// On CUDA, the kernels of attention_gpu.h compute the attention. The composed form is used for
// float64, for head sizes that the kernels do not support, and if a starts[t] is neither t nor
// starts[t - 1]. On CPUs, Lathe's kernel computes the attention where this kernel applies.
// Otherwise, the composed form is used for float64, if there are starts, and if q, k or v has a
// NaN; ATen's flash kernel is used for all other inputs.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <cmath>
#include <limits>

#include "autograd/ops/attention_gpu.h"
#include "autograd/ops/causal.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "autograd/saved_packer.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/attention.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

// Shapes: B batch, T time, C channels, H heads, D = C / H.
struct Attention {
  static constexpr OpInfo info{.name = "attention", .amp = Amp::low};
  int64_t heads;
  int64_t longest_document = 0;
  // starts [B, T], and on a GPU its DocumentBounds::begins; either may be undefined.
  Saved starts{}, document_begins{};
  Saved qkv = Saved::input(0), out = Saved::activation(), lse{}, seed{},
        offset{};  // in the composed form lse holds the probabilities

  enum class Kernel { own, cpu_flash, gpu, composed };

  Kernel kernel = Kernel::composed;

  // Whether backward computes `out` and `lse` again instead of keeping them, because q, k and v are
  // kept rounded. The exponentials of rounded scores need their own sum: with the exact one,
  // probabilities would not add up to 1, and gradients could become arbitrarily large.
  bool attends_again = false;

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
    const bool documents_ready = !starts.defined() || document_begins.defined();
    return documents_ready && gpu_attention_ready(t.scalar_type(), d) ? Kernel::gpu
                                                                      : Kernel::composed;
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
  /// Swaps the dims of positions and heads: [B, T, H, D] <-> [B, H, T, D].
  static at::Tensor exchanged(const at::Tensor& t) { return t.transpose(1, 2); }
  /// Writes the gradients of q, k and v [B, T, H, D] into the gradient of the packed tensor.
  void join(const at::Tensor& d_packed, const std::array<at::Tensor, 3>& gradients) const {
    std::array<const void*, 3> rows{};  // [B T, C]
    const int64_t bytes = d_packed.size(2) / 3 * static_cast<int64_t>(d_packed.element_size());
    bool is_ready = d_packed.is_cuda() && kernels_enabled() && bytes % 16 == 0;
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

  /// Runs a kernel other than the composed form on `qkv`. `out` is [B, T, C] from Kernel::own and
  /// [B, H, T, D] from the others.
  Attended attend() const {
    const at::Tensor& packed = qkv.data();
    if (kernel == Kernel::own) {
      at::Tensor y =
          at::empty({packed.size(0), packed.size(1), packed.size(2) / 3}, packed.options());
      at::Tensor l =
          at::empty({packed.size(0), heads, packed.size(1)}, packed.options().dtype(at::kFloat));
      attention_forward(shape(), element_of(y.scalar_type()), rows_of(packed, 0),
                        rows_of(packed, 1), rows_of(packed, 2), y.mutable_data_ptr(),
                        l.mutable_data_ptr<float>());
      // The kernel writes by pointer, which ATen does not notice.
      bump_version(y);
      return {y, l};
    }

    const at::Tensor q = part(packed, 0), k = part(packed, 1), v = part(packed, 2);
    if (kernel == Kernel::cpu_flash) {
      auto [y, l] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                                    /*is_causal=*/true);
      return {y, l};
    }
    const Attended a = gpu_attention(exchanged(q), exchanged(k), exchanged(v), gpu_options());
    return {exchanged(a.out), a.lse, a.seed, a.offset};
  }

  // P = softmax(mask(q k^T / sqrt(D))), y = P v
  at::Tensor forward(const at::Tensor& packed) {
    LATHE_CHECK(heads > 0, heads, " heads; at least one is needed");
    LATHE_CHECK(packed.dim() == 3 && packed.size(2) > 0 && packed.size(2) % (3 * heads) == 0,
                "needs [B, T, 3C] with C a multiple of ", heads, " heads");

    qkv = packed.contiguous();
    if (packed.numel() == 0) return packed.slice(2, 0, packed.size(2) / 3).clone();

    kernel = choose();
    if (kernel == Kernel::composed) {
      const at::Tensor q = part(qkv.data(), 0), k = part(qkv.data(), 1), v = part(qkv.data(), 2);
      // Low-precision inputs are widened first, so that scores and probabilities are float32 here
      // as in the flash kernels.
      const at::Tensor hidden = attention_mask(q.size(2), q.size(2), starts.data(), q.device());
      const at::Tensor scores = wide(q).matmul(wide(k).transpose(-2, -1)) * scale();
      lse = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
      return joined(lse.data().matmul(wide(v)).to(packed.scalar_type()));
    }

    const Attended a = attend();
    attends_again = saves_rounded();
    if (!attends_again) {
      out = a.out;
      lse = a.lse;
      seed = a.seed;
      offset = a.offset;
    }
    return kernel == Kernel::own ? a.out : joined(a.out);
  }
  // dv = P^T dy, dP = dy v^T, dS = P (dP - sum(P dP)), dq = dS k / sqrt(D), dk = dS^T q / sqrt(D)
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    const at::Tensor& packed = qkv.data();
    at::Tensor d_packed = at::empty_like(packed);
    if (packed.numel() == 0) return {d_packed};

    Attended a;
    if (kernel != Kernel::composed)
      a = attends_again ? attend() : Attended{out.data(), lse.data(), seed.data(), offset.data()};
    if (kernel == Kernel::own) {
      const at::Tensor d = dy.contiguous();
      attention_backward(shape(), element_of(d.scalar_type()), rows_of(packed, 0),
                         rows_of(packed, 1), rows_of(packed, 2), a.out.const_data_ptr(),
                         d.const_data_ptr(), a.lse.const_data_ptr<float>(), rows_of(d_packed, 0),
                         rows_of(d_packed, 1), rows_of(d_packed, 2));
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
            d_out, q, k, v, a.out, a.lse, /*dropout_p=*/0.0, /*is_causal=*/true);
        break;
      case Kernel::gpu: {
        const Attended of_gpu{
            .out = exchanged(a.out), .lse = a.lse, .seed = a.seed, .offset = a.offset};
        int64_t begin = 0;
        for (const auto& d : gpu_attention_backward(exchanged(d_out), exchanged(q), exchanged(k),
                                                    exchanged(v), of_gpu, gpu_options())) {
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

}  // namespace

Variable attention(const Variable& qkv, int64_t heads, const at::Tensor& starts) {
  require_defined("attention", {&qkv});
  const at::Tensor checked =
      qkv.dim() == 3 ? checked_starts(starts, qkv.size(0), qkv.size(1)) : at::Tensor();
  const DocumentBounds documents = checked.defined() && heads > 0
                                       ? gpu_document_bounds(checked, qkv, qkv.size(2) / 3 / heads)
                                       : DocumentBounds{};
  return apply(Attention{.heads = heads,
                         .longest_document = documents.longest,
                         .starts = checked,
                         .document_begins = documents.begins},
               qkv);
}

}  // namespace lathe
