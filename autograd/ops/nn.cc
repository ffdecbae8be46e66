// Ops of neural networks. Norms, SwiGLU and embedding are fused: no second derivatives.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/activation.h"
#include "core/kernels/dropout.h"
#include "core/kernels/loss.h"
#include "core/kernels/norm.h"

namespace lathe {
namespace {

/// What layer norm and RMS norm share. `out` is the result's dtype. On CPUs the kernels of core/kernels/norm.h;
/// float64, float16 and CUDA take ATen's.
struct Norm {
  double eps;
  at::ScalarType out;
  bool rms = false;
  Saved x{}, weight{}, bias{}, mean{}, rstd{};

  bool fused() const { return kernel_ready(x.data()) && kernel_dtype(out); }
  NormRows rows(const at::Tensor& w, const at::Tensor& b) const {
    const int64_t c = x.data().size(-1);
    return {.rows = x.data().numel() / c,
            .columns = c,
            .weight = floats_of(w),
            .bias = floats_of(b),
            .mean = rms ? nullptr : mean.data().mutable_data_ptr<float>(),
            .rstd = rstd.data().mutable_data_ptr<float>()};
  }

  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias_) {
    LATHE_CHECK(x_.dim() >= 1 && x_.size(-1) > 0, "the last dim must not be empty");
    const int64_t c = x_.size(-1);
    for (const auto& p : {weight_, bias_}) {
      LATHE_CHECK(!p.defined() || (p.dim() == 1 && p.size(0) == c), "weight and bias must have shape [", c, "]");
    }
    x = x_.contiguous();
    weight = weight_;
    bias = bias_;
    if (fused()) {
      at::Tensor y = at::empty(x_.sizes(), x_.options().dtype(out));
      const auto floats = x_.options().dtype(at::kFloat);
      if (!rms) mean = at::empty({x_.numel() / c}, floats);
      rstd = at::empty({x_.numel() / c}, floats);
      const at::Tensor w = as_float(weight_), b = as_float(bias_);
      norm_forward(rows(w, b), matrix_of(x.data()), matrix_of(y), static_cast<float>(eps));
      bump_version(y);
      return y;
    }
    const at::Tensor wide = wider(x.data()), w = wider(weight_), b = wider(bias_);
    if (rms) {
      rstd = (wide * wide).mean(-1, true).add(eps).rsqrt();
      const at::Tensor y = wide * rstd.data();
      return (w.defined() ? y * w : y).to(out);
    }
    auto [y, m, r] = at::native_layer_norm(wide, c, optional(w), optional(b), eps);
    mean = m;
    rstd = r;
    return y.to(out);
  }
  // g = dy * weight, h = (x - mean) * rstd:  dx = rstd * (g - avg(g) - h * avg(g * h)), dweight = sum(dy * h),
  // dbias = sum(dy); without mean and avg(g) for RMS norm
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needs, GradSlots& slots) const {
    const at::Tensor dy = dy_.contiguous(), in = x.data(), w = weight.data(), b = bias.data();
    if (fused()) {
      at::Tensor dx, dw, db;
      const auto like = [&](const at::Tensor& t) { return at::empty(t.sizes(), t.options().dtype(at::kFloat)); };
      if (needs[1]) dw = like(w);
      if (needs[2]) db = like(b);
      // The residual stream's gradient, which has come around the block already, takes this one in the same pass.
      if (needs[0]) dx = slots.take(0, in.scalar_type());
      const bool add = dx.defined();
      if (needs[0] && !add) dx = at::empty_like(in);
      const at::Tensor wf = as_float(w);
      norm_backward(rows(wf, {}), matrix_of(in), matrix_of(dy),
                    dx.defined() ? matrix_of(dx) : Matrix{nullptr, 0, element_of(in.scalar_type())}, add,
                    dw.defined() ? dw.mutable_data_ptr<float>() : nullptr,
                    db.defined() ? db.mutable_data_ptr<float>() : nullptr);
      if (dx.defined()) bump_version(dx);
      return {dx, dw, db};
    }
    const at::Tensor wide = wider(in), up = wider(dy), ww = wider(w);
    if (rms) {
      const at::Tensor h = wide * rstd.data(), g = ww.defined() ? up * ww : up;
      return {rstd.data() * (g - h * (g * h).mean(-1, true)),
              needs[1] ? (up * h).reshape({-1, in.size(-1)}).sum(0) : at::Tensor(), at::Tensor()};
    }
    auto [dx, dw, db] = at::native_layer_norm_backward(up, wide, in.size(-1), mean.data(), rstd.data(), optional(ww),
                                                       optional(wider(b)), {needs[0], needs[1], needs[2]});
    return {dx, dw, db};
  }

 private:
  static std::optional<at::Tensor> optional(const at::Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  }
  /// In float32, or float64 as it is.
  static at::Tensor wider(const at::Tensor& t) {
    return !t.defined() || t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
  }
};

struct LayerNormOp : Norm {
  static constexpr OpInfo info{.name = "layer_norm"};
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
    return flops_each(x, 8, 14);
  }
};

struct RmsNormOp : Norm {
  static constexpr OpInfo info{.name = "rms_norm"};
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
    return flops_each(x, 5, 11);
  }
};

// SwiGLU. No second derivatives.
struct SwigluOp {
  static constexpr OpInfo info{.name = "swiglu", .each = {6, 10}};
  Saved x{};

  // y = silu(a) b, [a b] = x
  at::Tensor forward(const at::Tensor& x_) {
    LATHE_CHECK(x_.dim() >= 1 && x_.size(-1) % 2 == 0, "the last dim must be even");
    x = x_.contiguous();
    const int64_t h = x_.size(-1) / 2;
    if (h == 0) return x_.clone();
    if (!kernel_ready(x_)) {
      const auto parts = x.data().split(h, -1);
      return parts[0] * parts[0].sigmoid() * parts[1];
    }
    auto sizes = x_.sizes().vec();
    sizes.back() = h;
    at::Tensor y = at::empty(sizes, x_.options());
    swiglu_forward(x.data().const_data_ptr(), y.mutable_data_ptr(), element_of(y.scalar_type()), y.numel() / h, h);
    bump_version(y);
    return y;
  }
  // s = sigmoid(a):  da = dy b (s + a s (1 - s)), db = dy a s
  Grads<1> backward(const at::Tensor& dy_, Needs<1>) const {
    const at::Tensor dy = dy_.contiguous(), in = x.data();
    const int64_t h = in.size(-1) / 2;
    if (h == 0) return {dy};
    if (!kernel_ready(in)) {
      const auto parts = in.split(h, -1);
      const at::Tensor s = parts[0].sigmoid();
      return {at::cat({dy * parts[1] * (s + parts[0] * s * (1 - s)), dy * parts[0] * s}, -1)};
    }
    at::Tensor dx = at::empty_like(in);
    swiglu_backward(in.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(), element_of(in.scalar_type()),
                    dy.numel() / h, h);
    bump_version(dx);
    return {dx};
  }
};

struct EmbeddingOp {
  static constexpr OpInfo info{.name = "embedding", .each = {0, 1}};
  Saved ids{};
  at::ScalarType out = at::kFloat, grad = at::kFloat;  // of the result, and of the table's gradient
  int64_t rows = 0;

  at::Tensor forward(const at::Tensor& weight) {
    LATHE_CHECK(weight.dim() == 2, "weight must be [V, C]");
    LATHE_CHECK(ids.data().scalar_type() == at::kLong, "ids must be int64, not ", describe(ids.data()));
    rows = weight.size(0);
    return at::embedding(weight, ids.data()).to(out);
  }
  // dweight[id] += dy at each place of the id, in float32 or wider
  Grads<1> backward(const at::Tensor& dy, Needs<1>, GradSlots& slots) const {
    if (kernel_ready(dy) && kernel_dtype(grad)) {
      // In the gradient that the table has already, such as a tied head's, else in zeros.
      at::Tensor table = slots.take(0, grad);
      if (!table.defined()) table = at::zeros({rows, dy.size(-1)}, dy.options().dtype(grad));
      const at::Tensor values = dy.contiguous(), places = ids.data().contiguous();
      scatter_add_rows(matrix_of(values), places.const_data_ptr<int64_t>(), places.numel(), dy.size(-1),
                       matrix_of(table));
      bump_version(table);
      return {table};
    }
    const at::Tensor wide = dy.scalar_type() == at::kDouble ? dy : dy.to(at::kFloat);
    return {at::embedding_dense_backward(wide, ids.data(), rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false)};
  }
};

struct Dropout {
  static constexpr OpInfo info{.name = "dropout"};
  DropoutMask mask;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = x.contiguous();
    at::Tensor y = at::empty_like(in);
    if (in.is_cuda()) {
      cuda_api().dropout(in.const_data_ptr(), y.mutable_data_ptr(), in.numel(), element_of(in.scalar_type()), mask);
      return y;
    }
    at::parallel_for(0, in.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      dropout_cpu(in.const_data_ptr(), y.mutable_data_ptr(), begin, end, element_of(in.scalar_type()), mask);
    });
    bump_version(y);
    return y;
  }
  // dx = dy under the same mask
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      return {Dropout{mask}.forward(dy)};
    } else {
      return {apply(Dropout{mask}, dy)};
    }
  }
};

/// The dtype of a norm's result.
at::ScalarType norm_out(const Variable& x, std::optional<at::ScalarType> out) {
  return out.value_or(mode().compute != at::kFloat && x.dtype() != at::kDouble ? at::kFloat : x.dtype());
}

}  // namespace

Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps,
                    std::optional<at::ScalarType> out) {
  return apply(LayerNormOp{{.eps = eps, .out = norm_out(x, out)}}, x, weight, bias);
}

Variable rms_norm(const Variable& x, const Variable& weight, double eps, std::optional<at::ScalarType> out) {
  return apply(RmsNormOp{{.eps = eps, .out = norm_out(x, out), .rms = true}}, x, weight, Variable());
}

Variable swiglu(const Variable& x) { return apply(SwigluOp{}, x); }

Variable embedding(const at::Tensor& ids, const Variable& weight) {
  EmbeddingOp op;
  op.ids = ids;
  // Under autocast rows of a low-precision weight begin a float32 residual stream.
  const bool widen = mode().compute != at::kFloat && weight.dtype() != at::kDouble;
  op.out = widen ? at::kFloat : weight.dtype();
  const Precision* kept = precision_of(weight);
  op.grad = kept != nullptr && weight.dtype() != at::kDouble ? kept->grad_dtype : weight.dtype();
  return apply(std::move(op), weight);
}

Variable dropout(const Variable& x, double p, uint64_t stream) {
  LATHE_CHECK(p >= 0 && p < 1, "dropout: p = ", p, " is outside [0, 1)");
  const auto& random = mode().random;
  if (p == 0 || !random) return x;
  LATHE_CHECK(x.dim() >= 1 && x.size(0) > 0, "dropout(", describe(x.data()), "): dim 0 must be the batch");
  const int64_t row = x.numel() / x.size(0);
  return apply(Dropout{{.key = make_key(random->seed, stream),
                        .step = random->step,
                        .first = static_cast<uint64_t>(random->first_sample * row),
                        .threshold = static_cast<uint32_t>(std::min(std::llround(p * 0x1p32), 0xffffffffLL)),
                        .scale = static_cast<float>(1 / (1 - p))}},
               x);
}

}  // namespace lathe
