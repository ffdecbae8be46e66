// Causal scaled dot-product attention on packed projections. q, k and v are views of the packed tensor, [B, H, T, D].
// cuDNN's attention is left out: its backward is not deterministic, and the trainer runs deterministic algorithms only.
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "core/dtype.h"
#include "core/kernels/attention.h"

namespace lathe {
namespace {

// Shapes: B batch, T time, C channels, H heads, D = C / H.
struct Attention {
  static constexpr OpInfo info{.name = "attention", .amp = Amp::low};
  int64_t heads;
  Saved qkv = Saved::input(0), out{}, lse{}, seed{}, offset{};  // composed: lse holds the probabilities

  enum class Kernel { own, cpu_flash, cuda_flash, cuda_efficient, composed };

  Kernel kernel = Kernel::composed;

  Kernel choose() const {
    const at::Tensor& t = qkv.data();
    const int64_t d = t.size(2) / 3 / heads;
    if (t.scalar_type() == at::kDouble) return Kernel::composed;
    if (t.is_cpu()) {
      if (kernel_ready(t) && attention_ready(shape(), element_of(t.scalar_type()))) return Kernel::own;
      // ATen's flash kernel can make zeros of a NaN in q or k, which would hide a diverged run.
      return t.isnan().any().item<bool>() ? Kernel::composed : Kernel::cpu_flash;
    }
    if (d % 8 != 0 || d > 256) return Kernel::composed;
    return t.scalar_type() == at::kFloat ? Kernel::cuda_efficient : Kernel::cuda_flash;
  }

  AttentionShape shape() const {
    const at::Tensor& t = qkv.data();
    return {.batch = t.size(0),
            .time = t.size(1),
            .heads = heads,
            .width = t.size(2) / 3 / heads,
            .scale = static_cast<float>(scale())};
  }

  at::Tensor part(const at::Tensor& packed, int64_t i) const {
    const int64_t b = packed.size(0), t = packed.size(1), c = packed.size(2) / 3;
    return packed.view({b, t, 3, heads, c / heads}).select(2, i).transpose(1, 2);
  }
  /// [B, H, T, D] -> [B, T, C].
  static at::Tensor joined(const at::Tensor& y) {
    return y.transpose(1, 2).reshape({y.size(0), y.size(2), y.size(1) * y.size(3)});
  }
  static at::Tensor wide(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat); }
  double scale() const {
    const int64_t head_size = qkv.data().size(2) / 3 / heads;
    return 1 / std::sqrt(static_cast<double>(head_size));
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
      at::Tensor y = at::empty({packed.size(0), packed.size(1), packed.size(2) / 3}, packed.options());
      lse = at::empty({packed.size(0), heads, packed.size(1)}, packed.options().dtype(at::kFloat));
      attention_forward(shape(), element_of(y.scalar_type()), qkv.data().const_data_ptr(), y.mutable_data_ptr(),
                        lse.data().mutable_data_ptr<float>());
      bump_version(y);
      out = y;
      return y;
    }
    const at::Tensor q = part(qkv.data(), 0), k = part(qkv.data(), 1), v = part(qkv.data(), 2);
    switch (kernel) {
      case Kernel::own: break;
      case Kernel::cpu_flash: {
        auto [y, l] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0, /*is_causal=*/true);
        out = y, lse = l;
        break;
      }
      case Kernel::cuda_flash: {
        auto r = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true);
        out = std::get<0>(r), lse = std::get<1>(r), seed = std::get<6>(r), offset = std::get<7>(r);
        break;
      }
      case Kernel::cuda_efficient: {
        auto [y, l, s, o] = at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, true, 0.0, true);
        out = y, lse = l, seed = s, offset = o;
        break;
      }
      case Kernel::composed: {
        const int64_t t = q.size(2);
        const at::Tensor future = at::ones({t, t}, q.options().dtype(at::kBool)).triu(1);
        const at::Tensor scores = wide(q).matmul(wide(k).transpose(-2, -1)) * scale();
        lse = scores.masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
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
      attention_backward(shape(), element_of(d.scalar_type()), packed.const_data_ptr(), out.data().const_data_ptr(),
                         d.const_data_ptr(), lse.data().const_data_ptr<float>(), d_packed.mutable_data_ptr());
      bump_version(d_packed);
      return {d_packed};
    }
    const at::Tensor q = part(packed, 0), k = part(packed, 1), v = part(packed, 2);
    const at::Tensor d_out =
        dy.contiguous().view({packed.size(0), packed.size(1), heads, packed.size(2) / 3 / heads}).transpose(1, 2);
    at::Tensor dq, dk, dv;
    switch (kernel) {
      case Kernel::own: break;
      case Kernel::cpu_flash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k, v, out.data(), lse.data(), /*dropout_p=*/0.0, /*is_causal=*/true);
        break;
      case Kernel::cuda_flash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
            d_out, q, k, v, out.data(), lse.data(), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, packed.size(1), packed.size(1),
            /*dropout_p=*/0.0, /*is_causal=*/true, seed.data(), offset.data());
        break;
      case Kernel::cuda_efficient: {
        at::Tensor d_bias;
        std::tie(dq, dk, dv, d_bias) = at::_scaled_dot_product_efficient_attention_backward(
            d_out, q, k, v, /*attn_bias=*/{}, out.data(), lse.data(), seed.data(), offset.data(), /*dropout_p=*/0.0,
            {true, true, true, false}, /*is_causal=*/true);
        break;
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
    part(d_packed, 0).copy_(dq);
    part(d_packed, 1).copy_(dk);
    part(d_packed, 2).copy_(dv);
    return {d_packed};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1> needs) const {
    const auto plain = [this](const std::vector<Variable>& in) {
      const int64_t b = in[0].size(0), t = in[0].size(1), c = in[0].size(2) / 3;
      const Variable split = reshape(wide_of(in[0]), {b, t, 3, heads, c / heads});
      const auto take = [&](int64_t i) { return transpose(select(split, 2, i), 1, 2); };
      const at::Tensor future = at::ones({t, t}, split.data().options().dtype(at::kBool)).triu(1);
      const Variable scores = matmul(take(0), transpose(take(1), -2, -1)) * scale();
      const Variable p = softmax(masked_fill(scores, future, -std::numeric_limits<double>::infinity()), -1);
      return std::vector{reshape(transpose(matmul(p, take(2)), 1, 2), {b, t, c})};
    };
    return plain_gradients<1>({qkv.as<Variable>()}, needs, {dy}, plain);
  }
  // Counted as full squares, the field's convention, although the causal kernels skip what is masked.
  OpFlops flops(const at::Tensor& packed, const at::Tensor& y) const {
    const auto t = static_cast<double>(packed.size(1)), n = static_cast<double>(y.numel());
    const double scores = t * n / (static_cast<double>(y.size(2)) / static_cast<double>(heads));
    return {.forward = {4 * t * n, 5 * scores}, .backward = {8 * t * n, 4 * scores}};
  }
};

}  // namespace

Variable attention(const Variable& qkv_BT3C, int64_t heads) { return apply(Attention{.heads = heads}, qkv_BT3C); }

}  // namespace lathe
