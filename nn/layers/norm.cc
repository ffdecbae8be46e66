#include "nn/layers/norm.h"

#include <optional>

#include "core/error.h"
#include "core/mode.h"
#include "core/running_statistic.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

/// Returns the dtype in which a norm returns its result for the next layer. Under autocast, this is
/// the dtype of matrix products. Returns nullopt if the norm's default dtype applies.
std::optional<at::ScalarType> product_dtype(const Variable& x) {
  const bool low = mode().compute != at::kFloat && !mode().fp8 && x.dtype() != at::kDouble;
  return low ? std::optional(mode().compute) : std::nullopt;
}

}  // namespace

LayerNorm::LayerNorm(int64_t channels, bool with_bias)
    : weight(new_parameter({channels})), bias(with_bias ? new_parameter({channels}) : Variable()) {}

Variable LayerNorm::operator()(const Variable& x, bool wide) const {
  ModuleCall call(*this, {{'C', weight.size(0)}});
  call.input(x, "... C");
  return call.result(layer_norm(x, weight, bias, eps, wide ? std::nullopt : product_dtype(x)),
                     "... C");
}

RMSNorm::RMSNorm(int64_t channels, double eps_) : weight(new_parameter({channels})), eps(eps_) {}

Variable RMSNorm::with_weight(const Variable& x, const Variable& other) const {
  ModuleCall call(*this, {{'C', weight.size(0)}});
  call.input(x, "... C");
  return call.result(rms_norm(x, other, eps, product_dtype(x)), "... C");
}

GroupNorm::GroupNorm(int64_t groups_, int64_t channels_, double eps_, bool affine)
    : weight(affine ? new_parameter({channels_}) : Variable()),
      bias(affine ? new_parameter({channels_}) : Variable()),
      groups(groups_),
      channels(channels_),
      eps(eps_) {
  LATHE_CHECK(groups >= 1 && channels % groups == 0, "GroupNorm: ", groups,
              " groups do not divide ", channels, " channels");
}

Variable GroupNorm::normalize(const Variable& x) const {
  return group_norm(x, groups, weight, bias, eps, product_dtype(x));
}

Variable GroupNorm::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'C', channels}});
  const char* const specs[]{"B C", "B C L", "B C H W", "B C D H W"};
  const int64_t dims = x.defined() ? x.dim() : 2;
  LATHE_CHECK(dims >= 2 && dims <= 5, call.text(),
              ": expected an input of 2 to 5 dims, but its number of dims is ", dims);
  const char* shape = specs[dims - 2];
  call.input(x, shape);
  return call.result(normalize(x), shape);
}
Variable InstanceNorm1d::operator()(const Variable& x_BCL) const {
  ModuleCall call(*this, {{'C', channels}});
  call.input(x_BCL, "B C L");
  return call.result(normalize(x_BCL), "B C L");
}
Variable InstanceNorm2d::operator()(const Variable& x_BCHW) const {
  ModuleCall call(*this, {{'C', channels}});
  call.input(x_BCHW, "B C H W");
  return call.result(normalize(x_BCHW), "B C H W");
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

Variable BatchNorm::normalize(const Variable& x, bool wide) const {
  const auto out = wide ? std::nullopt : product_dtype(x);
  if (!is_training()) return batch_norm(x, weight, bias, running_mean, running_var, eps, out);
  const BatchNormed made = batch_norm(x, weight, bias, eps, out);
  if (made.mean.defined()) {
    record_running({.running = running_mean,
                    .value = made.mean,
                    .momentum = momentum,
                    .count = num_batches_tracked});
    record_running({.running = running_var, .value = made.var, .momentum = momentum});
  }
  return made.y;
}

Variable BatchNorm1d::operator()(const Variable& x, bool wide) const {
  ModuleCall call(*this, {{'C', weight.size(0)}});
  const char* shape = !x.defined() || x.dim() == 2 ? "B C" : "B C L";
  call.input(x, shape);
  return call.result(normalize(x, wide), shape);
}
Variable BatchNorm2d::operator()(const Variable& x_BCHW, bool wide) const {
  ModuleCall call(*this, {{'C', weight.size(0)}});
  call.input(x_BCHW, "B C H W");
  return call.result(normalize(x_BCHW, wide), "B C H W");
}

}  // namespace lathe
