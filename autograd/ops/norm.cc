// Implements fused layer norm and RMS norm.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/norm.h"

namespace lathe {
namespace {

/// The common part of layer norm and RMS norm. It uses the kernels of core/kernels/norm.h where
/// they apply. It uses ATen's kernels for float64, and on GPUs for row lengths that norm_on_gpu()
/// rejects. `out` is the result's dtype.
struct Norm {
  double eps;
  at::ScalarType out;
  bool rms = false;
  Saved x = Saved::input(0), weight = Saved::input(1), bias = Saved::input(2), mean{}, rstd{};

  bool fused() const { return on_gpu() || (kernel_ready(x.data()) && kernel_dtype(out)); }
  bool on_gpu() const {
    return gpu_kernel_ready(x.data()) && norm_on_gpu(x.data().size(-1)) && out != at::kDouble;
  }
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
      LATHE_CHECK(!p.defined() || (p.dim() == 1 && p.size(0) == c),
                  "weight and bias must have shape [", c, "]");
      LATHE_CHECK(!p.defined() || p.device() == x_.device(), "x is on ", x_.device().str(),
                  ", but another input is not");
    }

    x = for_kernels(x_);
    weight = weight_;
    bias = bias_;

    if (fused()) {
      at::Tensor y = at::empty(x_.sizes(), x_.options().dtype(out));
      const auto floats = x_.options().dtype(at::kFloat);
      if (!rms) mean = at::empty({x_.numel() / c}, floats);
      rstd = at::empty({x_.numel() / c}, floats);

      const at::Tensor w = as_float(weight_), b = as_float(bias_);
      const auto run = on_gpu() ? cuda_api().norm_forward : norm_forward;
      run(rows(w, b), matrix_of(x.data()), matrix_of(y), static_cast<float>(eps));
      // The kernel writes by pointer, which ATen does not notice.
      bump_version(y);
      return y;
    }

    const at::Tensor wide = at_least_float32(x.data()), w = at_least_float32(weight_),
                     b = at_least_float32(bias_);

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
  // g = dy * weight, h = (x - mean) * rstd:  dx = rstd * (g - avg(g) - h * avg(g * h)), dweight =
  // sum(dy * h), dbias = sum(dy); RMS norm omits mean and avg(g)
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needs, GradSlots& slots) const {
    const at::Tensor dy = for_kernels(dy_), in = x.data(), w = weight.data(), b = bias.data();

    if (fused()) {
      at::Tensor dx, dw, db;
      const auto like = [&](const at::Tensor& t) {
        return at::empty(t.sizes(), t.options().dtype(at::kFloat));
      };
      if (needs[1]) dw = like(w);
      if (needs[2]) db = like(b);

      // If the gradient of the skip connection has arrived already, add dx to that gradient
      // directly.
      if (needs[0]) dx = slots.take(0, in.scalar_type());
      const bool add = dx.defined();
      if (add) dx = for_kernels(dx);
      if (needs[0] && !add) dx = at::empty_like(in);

      const at::Tensor wf = as_float(w);
      const NormRows all = rows(wf, {});
      const Matrix to =
          dx.defined() ? matrix_of(dx) : Matrix{nullptr, 0, element_of(in.scalar_type())};
      float *dweight = dw.defined() ? dw.mutable_data_ptr<float>() : nullptr,
            *dbias = db.defined() ? db.mutable_data_ptr<float>() : nullptr;

      if (on_gpu()) {
        // Blocks of rows write partial sums, and a second pass adds these in a fixed order, so the
        // result is deterministic.
        at::Tensor partials;
        if (needs[1] || needs[2])
          partials = at::empty({norm_sum_scratch(all)}, in.options().dtype(at::kFloat));
        cuda_api().norm_backward(all, matrix_of(in), matrix_of(dy), to, add,
                                 partials.defined() ? partials.mutable_data_ptr<float>() : nullptr,
                                 dweight, dbias);
      } else {
        norm_backward(all, matrix_of(in), matrix_of(dy), to, add, dweight, dbias);
      }

      if (dx.defined()) bump_version(dx);
      return {dx, dw, db};
    }

    const at::Tensor wide = at_least_float32(in), up = at_least_float32(dy),
                     ww = at_least_float32(w);

    if (rms) {
      const at::Tensor h = wide * rstd.data(), g = ww.defined() ? up * ww : up;
      return {rstd.data() * (g - h * (g * h).mean(-1, true)),
              needs[1] ? (up * h).reshape({-1, in.size(-1)}).sum(0) : at::Tensor(), at::Tensor()};
    }

    auto [dx, dw, db] = at::native_layer_norm_backward(
        up, wide, in.size(-1), mean.data(), rstd.data(), optional(ww),
        optional(at_least_float32(b)), {needs[0], needs[1], needs[2]});
    return {dx, dw, db};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    const auto plain = [this](const std::vector<Variable>& in) {
      Variable y = wide_of(in[0]);
      if (!rms) y = y - lathe::mean(y, -1, true);
      y = y * pow(lathe::mean(y * y, -1, true) + eps, -0.5);
      if (in[1].defined()) y = y * wide_of(in[1]);
      return std::vector{in[2].defined() ? y + wide_of(in[2]) : y};
    };
    return plain_gradients<3>({x.as<Variable>(), weight.as<Variable>(), bias.as<Variable>()}, needs,
                              {dy}, plain);
  }

 private:
  static std::optional<at::Tensor> optional(const at::Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  }
};

struct LayerNormOp : Norm {
  static constexpr OpInfo info{.name = "layer_norm", .optional = inputs_at({1, 2})};
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&) {
    return flops_each(x, 8, 14);
  }
};

struct RmsNormOp : Norm {
  static constexpr OpInfo info{.name = "rms_norm", .optional = inputs_at({1, 2})};
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&) {
    return flops_each(x, 5, 11);
  }
};

/// Returns the dtype of a norm's result.
at::ScalarType norm_out(const Variable& x, std::optional<at::ScalarType> out) {
  return out.value_or(mode().compute != at::kFloat && x.dtype() != at::kDouble ? at::kFloat
                                                                               : x.dtype());
}

}  // namespace

Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps,
                    std::optional<at::ScalarType> out) {
  require_defined("layer_norm", {&x});
  return apply(LayerNormOp{{.eps = eps, .out = norm_out(x, out)}}, x, weight, bias);
}

Variable rms_norm(const Variable& x, const Variable& weight, double eps,
                  std::optional<at::ScalarType> out) {
  require_defined("rms_norm", {&x});
  return apply(RmsNormOp{{.eps = eps, .out = norm_out(x, out), .rms = true}}, x, weight,
               Variable());
}

}  // namespace lathe
