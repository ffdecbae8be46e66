// Implements group norm with ATen's kernels. Second derivatives are composed of other ops.
#include <ATen/ops/mean.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/zeros.h>

#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/images.h"
#include "autograd/ops/math.h"
#include "core/error.h"
#include "core/mode.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool instance_norm_registered = register_composed({"instance_norm"});

/// Makes a weight contiguous, because ATen's kernels read a weight with other strides incorrectly.
/// Returns nullopt if the weight is undefined.
std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional(t.contiguous()) : std::nullopt;
}

// Shapes: B samples, C channels, P positions of a channel, G groups, M = C / G * P.
struct GroupNorm {
  static constexpr OpInfo info{
      .name = "group_norm", .each = {8, 14}, .optional = inputs_at({1, 2})};
  int64_t groups;
  double eps;
  at::ScalarType out;
  Saved x = Saved::input(0), weight = Saved::input(1), mean_BG{}, rstd_BG{};

  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias_) {
    LATHE_CHECK(x_.dim() >= 2 && groups > 0 && x_.size(1) % groups == 0,
                "needs x [B, C, ...] with C a multiple of ", groups, " groups");
    const int64_t b = x_.size(0), c = x_.size(1), places = places_of(x_);
    for (const auto& p : {weight_, bias_}) {
      LATHE_CHECK(!p.defined() || (p.dim() == 1 && p.size(0) == c),
                  "weight and bias must have shape [", c, "]");
    }
    LATHE_CHECK(x_.numel() == 0 || c / groups * places > 1,
                "a group has one value, which is its own mean; a norm needs two values or more");
    x = x_;
    weight = weight_;
    if (x_.numel() == 0) return x_.to(out, /*non_blocking=*/false, /*copy=*/true);
    auto [y, mean, rstd] = at::native_group_norm(
        at_least_float32(x_).contiguous(), optional(at_least_float32(weight_)),
        optional(at_least_float32(bias_)), b, c, places, groups, eps);
    mean_BG = mean;
    rstd_BG = rstd;
    return y.to(out);
  }
  static int64_t places_of(const at::Tensor& t) {
    return c10::multiply_integers(t.sizes().slice(2));
  }

  // Within a group, let g = dy * weight and h = (x - mean) * rstd. Then dx = rstd * (g - avg(g) - h
  // * avg(g * h)). Over all dims except dim 1, dweight = sum(dy * h) and dbias = sum(dy).
  Grads<3> backward(const at::Tensor& dy, Needs<3> needs) const {
    const at::Tensor &in = x.data(), &w = weight.data();
    if (in.numel() == 0) {
      const auto none = [&](bool need) {
        return need ? at::zeros({in.size(1)}, at_least_float32(dy).options()) : at::Tensor();
      };
      return {dy, none(needs[1]), none(needs[2])};
    }
    const at::Tensor up = at_least_float32(dy).contiguous();
    // ATen's kernel takes the dtype and device of the bias gradient from the weight. If there is no
    // weight, compute the bias gradient here.
    const bool is_bias_alone = needs[2] && !w.defined();
    auto [dx, dw, db] = at::native_group_norm_backward(
        up, at_least_float32(in).contiguous(), mean_BG.data(), rstd_BG.data(),
        optional(at_least_float32(w)), in.size(0), in.size(1), places_of(in), groups,
        {needs[0], needs[1], needs[2] && !is_bias_alone});
    if (is_bias_alone)
      db = up.reshape({in.size(0), in.size(1), places_of(in)}).sum(at::IntArrayRef{0, 2});
    return {dx, dw, db};
  }
  Grads<3, Variable> backward(const Variable& dy_, Needs<3> needs) const {
    const at::Tensor& in = x.data();
    const at::ScalarType wide = in.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const int64_t b = in.size(0), c = in.size(1), places = places_of(in);
    const Dims as_BCP{b, c, places}, as_BGM{b, groups, c / groups * places};
    const Variable dy = reshape(cast(dy_, wide), as_BCP),
                   v = reshape(cast(x.as<Variable>(), wide), as_BGM);
    const Variable away = v - mean(v, 2, true), rstd = rsqrt(mean(away * away, 2, true) + eps),
                   h = away * rstd;
    const Variable h_BCP = reshape(h, as_BCP);
    Grads<3, Variable> grads;
    if (needs[0]) {
      const Variable w = weight.as<Variable>();
      const Variable g = reshape(w.defined() ? dy * reshape(cast(w, wide), {c, 1}) : dy, as_BGM);
      grads[0] = reshape(rstd * (g - mean(g, 2, true) - h * mean(g * h, 2, true)), in.sizes());
    }
    if (needs[1]) grads[1] = sum(dy * h_BCP, {0, 2});
    if (needs[2]) grads[2] = sum(dy, {0, 2});
    return grads;
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&) {
    return flops_each(x, 8, 14);
  }
};

}  // namespace

Variable group_norm(const Variable& x, int64_t groups, const Variable& weight, const Variable& bias,
                    double eps, std::optional<at::ScalarType> out) {
  require_defined("group_norm", {&x});
  const bool raised = mode().compute != at::kFloat && x.dtype() != at::kDouble;
  return apply(
      GroupNorm{.groups = groups, .eps = eps, .out = out.value_or(raised ? at::kFloat : x.dtype())},
      x, weight, bias);
}
Variable instance_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps,
                       std::optional<at::ScalarType> out) {
  require_defined("instance_norm", {&x});
  LATHE_CHECK(x.dim() >= 3, "instance_norm(", describe(x.data()), "): needs at least [B, C, L]");
  return group_norm(x, x.size(1), weight, bias, eps, out);
}

}  // namespace lathe
