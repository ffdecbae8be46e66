#include "autograd/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_passes.h"
#include "core/device.h"
#include "core/mode.h"

namespace lathe {
namespace {

constexpr double e4m3_largest = 448, e5m2_largest = 57344;

bool has_fp8_hardware(const at::Tensor& t) {
  return t.is_cuda() && cuda_api().compute_capability() >= 89;
}

}  // namespace

at::Tensor Fp8Scaling::largest(Role role, const at::Tensor& t) const {
  // amax() refuses empty tensors, which have no largest value.
  at::Tensor own =
      t.numel() == 0 ? at::zeros({}, t.options().dtype(at::kFloat)) : t.abs().amax().to(at::kFloat);
  if (!history.defined()) return own;
  const at::Tensor row = history.select(0, role);
  // Record the largest value of t in a forward pass that records a graph and is not a
  // recomputation. Always record the largest value of a gradient, because mode().grad is false in
  // the backward pass.
  if ((mode().grad && !mode().is_recomputing) || role == gradient) {
    const at::Tensor now = row.select(0, 0);
    now.copy_(now.maximum(at::where(own.isfinite(), own, 0.0)));
  }
  const at::Tensor before = row.slice(0, 1).amax();
  // If t has a value that is not finite, return the largest value of t, so that the overflow stays
  // visible.
  return at::where(before.gt(0).logical_and(own.isfinite()), before, own);
}

void Fp8Scaling::advance() const {
  history.copy_(history.roll(1, 1));
  history.select(1, 0).zero_();
}

Fp8Tensor to_fp8(const at::Tensor& t, const at::Tensor& largest, at::ScalarType format) {
  const double limit = format == at::kFloat8_e4m3fn ? e4m3_largest : e5m2_largest;
  const at::Tensor usable =
      largest.isfinite().logical_and(largest.gt(1e-30));  // so that limit / largest is finite
  const at::Tensor scale = at::where(usable, limit / largest, 1.0);
  const at::Tensor nan = at::full_like(largest, std::numeric_limits<double>::quiet_NaN());
  const at::Tensor factor =
      at::where(largest.isfinite(), at::where(usable, largest / limit, 1.0), nan);
  return {t.to(at::kFloat).mul(scale).clamp_(-limit, limit).to(format), factor.to(at::kFloat)};
}

at::Tensor fp8_matmul_nt(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                         at::ScalarType out) {
  if (has_fp8_hardware(a.data)) {
    const auto added = bias.defined() ? std::optional(bias.to(out)) : std::nullopt;
    return at::_scaled_mm(a.data.contiguous(), b.data.contiguous().t(), a.factor, b.factor, added,
                          std::nullopt, out,
                          /*use_fast_accum=*/false);
  }
  const at::Tensor left = a.data.to(at::kFloat).contiguous(),
                   right = b.data.to(at::kFloat).contiguous();
  // Use Lathe's matrix product if possible: the bits of ATen's matrix product may depend on the
  // number of threads.
  at::Tensor y = kernel_ready(left) && kernel_ready(right)
                     ? linear_pass(left, right, {}, {}, Activation::none, nullptr)
                     : at::mm(left, right.t());
  y.mul_(a.factor * b.factor);
  if (bias.defined()) y.add_(bias.to(out));
  return y.to(out);
}

}  // namespace lathe
