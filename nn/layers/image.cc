#include "nn/layers/image.h"

#include "core/error.h"
#include "core/mode.h"

namespace lathe {

Conv2d::Conv2d(int64_t in, int64_t out, Pair kernel, const Conv2dOptions& options_, bool with_bias)
    : options(options_) {
  LATHE_CHECK(options.groups >= 1 && in % options.groups == 0 && out % options.groups == 0, "Conv2d: ", options.groups,
              " groups do not divide ", in, " channels in and ", out, " out");
  weight = new_parameter({out, in / options.groups, kernel.h, kernel.w});
  if (with_bias) bias = new_parameter({out});
}

Variable Conv2d::operator()(const Variable& x_BCHW) const {
  check_shape("Conv2d", x_BCHW.data(), "B C H W", {{'C', weight.size(1) * options.groups}});
  return conv2d(x_BCHW, weight, bias, options);
}

BatchNorm::BatchNorm(int64_t channels, double momentum_, double eps_)
    : weight(new_parameter({channels})),
      bias(new_parameter({channels})),
      running_mean(new_buffer({channels}, 0)),
      running_var(new_buffer({channels}, 1)),
      num_batches_tracked(new_buffer({}, 0, at::kLong)),
      momentum(momentum_),
      eps(eps_) {}

void BatchNorm::visit(Visit& v) {
  v("weight", weight, Role::scale);
  v("bias", bias, Role::bias);
  v.buffer("running_mean", running_mean);
  v.buffer("running_var", running_var);
  v.buffer("num_batches_tracked", num_batches_tracked);
}

Variable BatchNorm::normalise(const Variable& x, bool wide) const {
  std::optional<at::ScalarType> out;
  if (!wide && mode().compute != at::kFloat && !mode().fp8 && x.dtype() != at::kDouble) out = mode().compute;
  if (!is_training()) return batch_norm(x, weight, bias, running_mean, running_var, eps, out);
  const BatchNormed made = batch_norm(x, weight, bias, eps, out);
  if (made.mean.defined() && !mode().again) {
    running_mean.mul_(1 - momentum).add_(made.mean, momentum);
    running_var.mul_(1 - momentum).add_(made.var, momentum);
    num_batches_tracked.add_(1);
  }
  return made.y;
}

Variable BatchNorm1d::operator()(const Variable& x, bool wide) const {
  check_shape("BatchNorm1d", x.data(), x.dim() == 2 ? "B C" : "B C L", {{'C', weight.size(0)}});
  return normalise(x, wide);
}
Variable BatchNorm2d::operator()(const Variable& x_BCHW, bool wide) const {
  check_shape("BatchNorm2d", x_BCHW.data(), "B C H W", {{'C', weight.size(0)}});
  return normalise(x_BCHW, wide);
}

}  // namespace lathe
