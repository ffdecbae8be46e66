// Implements fused batch norm.
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/plain.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

/// Returns x [B, C, ...] as a contiguous tensor. On a CPU, an x with one value per channel and
/// sample becomes [1, C, B]: ATen divides the sums of [B, C] into as many parts as there are
/// threads, so the bits of these sums would depend on the number of threads.
at::Tensor by_channel(const at::Tensor& x) {
  if (!x.is_cpu() || x.numel() != x.size(0) * x.size(1)) return x.contiguous();
  return x.reshape({x.size(0), x.size(1)}).t().contiguous().unsqueeze(0);
}

/// Undoes by_channel(): returns x in the shape `sizes` that the tensor had before.
at::Tensor by_sample(const at::Tensor& x, at::IntArrayRef sizes) {
  return x.sizes() == sizes ? x : x.squeeze(0).t().reshape(sizes);
}

struct BatchNormOp {
  static constexpr OpInfo info{.name = "batch_norm", .optional = inputs_at({1, 2})};
  double eps;
  at::ScalarType out;
  bool given = false;  // true: use the given statistics; false: compute the batch's statistics
  Saved x = Saved::input(0), weight = Saved::input(1), bias = Saved::input(2);
  Saved mean{}, var{};  // for statistics of the batch, `var` holds 1 / sqrt(var + eps)

  // Returns y = (x - mean) / sqrt(var + eps) * weight + bias. If no statistics are given, also
  // returns the batch's mean and unbiased variance, unless x is empty.
  std::vector<at::Tensor> forward(const at::Tensor& x_, const at::Tensor& weight_,
                                  const at::Tensor& bias_) {
    LATHE_CHECK(x_.dim() >= 2, "x must be [B, C, ...]");
    const int64_t c = x_.size(1);
    for (const at::Tensor& p : {weight_, bias_, mean.data(), var.data()}) {
      LATHE_CHECK(!p.defined() || (p.dim() == 1 && p.size(0) == c),
                  "weight, bias and statistics must have shape [", c, "]");
    }
    if (!given && x_.numel() == c) {
      fail(Exit::usage,
           "batch statistics need more than one value per channel; train on larger batches "
           "(train.batch_size), or use given statistics");
    }

    x = x_.contiguous();
    weight = weight_;
    bias = bias_;
    if (x_.numel() == 0) return {x_.to(out)};

    const at::Tensor wide = by_channel(at_least_float32(x.data()));

    if (given) {
      auto [y, unused_mean, unused_var] = at::native_batch_norm(
          wide, optional(weight_), optional(bias_), optional(mean.data()), optional(var.data()),
          /*training=*/false, /*momentum=*/0, eps);
      return {by_sample(y, x_.sizes()).to(out)};
    }

    // With a momentum of 1, ATen's running statistics become the statistics of this batch.
    const at::Tensor batch_mean = at::zeros({c}, wide.options()),
                     batch_var = at::zeros({c}, wide.options());
    auto [y, m, r] =
        at::native_batch_norm(wide, optional(weight_), optional(bias_), batch_mean, batch_var,
                              /*training=*/true, /*momentum=*/1, eps);

    mean = m;
    var = r;
    return {by_sample(y, x_.sizes()).to(out), batch_mean, batch_var};
  }
  // h = (x - mean) / sqrt(var + eps), g = dy * weight:  dweight = sum(dy * h), dbias = sum(dy),
  // dx = (g - avg(g) - h * avg(g * h)) / sqrt(var + eps). With given statistics,
  // dx = g / sqrt(var + eps). Sums and averages are over all dims except dim 1.
  Grads<3> backward(const GradList<at::Tensor>& dy, Needs<3> needs) const {
    const at::Tensor& in = x.data();
    if (in.numel() == 0) {
      const auto none = [&](bool need) {
        return need ? at::zeros({in.size(1)}, at_least_float32(dy[0]).options()) : at::Tensor();
      };
      return {dy[0], none(needs[1]), none(needs[2])};
    }
    const auto m = optional(mean.data()), v = optional(var.data()), none = optional({});
    auto saved_mean = given ? none : m, saved_rstd = given ? none : v;
    // One of ATen's GPU kernels needs the tensors that training saves, even if statistics are
    // given.
    if (given && in.is_cuda()) {
      saved_mean = m;
      saved_rstd = optional(var.data().add(eps).rsqrt_());
    }
    auto [dx, dw, db] = at::native_batch_norm_backward(
        by_channel(at_least_float32(dy[0])), by_channel(at_least_float32(in)),
        optional(weight.data()), given ? m : none, given ? v : none, saved_mean, saved_rstd, !given,
        eps, needs);
    return {dx.defined() ? by_sample(dx, in.sizes()) : dx, dw, db};
  }
  Grads<3, Variable> backward(const GradList<Variable>& dy, Needs<3> needs) const {
    const auto plain = [this](const std::vector<Variable>& in) {
      std::vector<int64_t> dims, channel_sizes(static_cast<size_t>(in[0].dim()), 1);
      for (int64_t d = 0; d < in[0].dim(); ++d) {
        if (d != 1) dims.push_back(d);
      }
      channel_sizes[1] = in[0].size(1);
      const auto spread = [&](const Variable& v) { return reshape(wide_of(v), channel_sizes); };
      Variable y = wide_of(in[0]), power;
      if (given) {
        y = y - spread(Variable(mean.data()));
        power = spread(Variable(var.data()));
      } else if (y.numel() > 0) {
        y = y - lathe::mean(y, at::IntArrayRef(dims), true);
        power = lathe::mean(y * y, at::IntArrayRef(dims), true);
      }
      if (power.defined()) y = y * pow(power + eps, -0.5);
      if (in[1].defined()) y = y * spread(in[1]);
      return std::vector{in[2].defined() ? y + spread(in[2]) : y};
    };
    return plain_gradients<3>({x.as<Variable>(), weight.as<Variable>(), bias.as<Variable>()}, needs,
                              {dy[0]}, plain);
  }
  OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                const at::Tensor&) const {
    return given ? flops_each(x, 2, 4) : flops_each(x, 8, 14);
  }

 private:
  /// Returns t as a contiguous tensor in float32 or wider, or nullopt if t is undefined. ATen's
  /// backward reads a non-contiguous weight [C] incorrectly if x is [B, C].
  static std::optional<at::Tensor> optional(const at::Tensor& t) {
    return t.defined() ? std::optional(at_least_float32(t).contiguous()) : std::nullopt;
  }
};

at::ScalarType batch_norm_out(const Variable& x, std::optional<at::ScalarType> out) {
  return out.value_or(mode().compute != at::kFloat && x.dtype() != at::kDouble ? at::kFloat
                                                                               : x.dtype());
}

}  // namespace

BatchNormed batch_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps,
                       std::optional<at::ScalarType> out) {
  require_defined("batch_norm", {&x});
  auto made = apply(BatchNormOp{.eps = eps, .out = batch_norm_out(x, out)}, x, weight, bias);
  if (made.size() == 1) return {.y = made[0], .mean = {}, .var = {}};
  return {.y = made[0], .mean = made[1].data(), .var = made[2].data()};
}

Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const at::Tensor& mean, const at::Tensor& var, double eps,
                    std::optional<at::ScalarType> out) {
  require_defined("batch_norm", {&x});
  LATHE_CHECK(mean.defined() && var.defined(), "batch_norm: mean and variance are both needed");
  const at::ScalarType wide = x.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  // The op is constructed with the mean and the variance, so that recompute() notices if they are
  // changed in place.
  return apply(BatchNormOp{.eps = eps,
                           .out = batch_norm_out(x, out),
                           .given = true,
                           .mean = mean.to(wide),
                           .var = var.to(wide)},
               x, weight, bias)[0];
}

}  // namespace lathe
