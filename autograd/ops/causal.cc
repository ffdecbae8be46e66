#include "autograd/ops/causal.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/mode.h"

namespace lathe {

OpFlops attention_flops(const at::Tensor& y, int64_t keys, int64_t heads) {
  const auto t = static_cast<double>(keys), n = static_cast<double>(y.numel());
  const double scores = t * n / (static_cast<double>(y.size(2)) / static_cast<double>(heads));
  return {.forward = {4 * t * n, 5 * scores}, .backward = {8 * t * n, 4 * scores}};
}

at::Tensor attention_mask(int64_t time, int64_t keys, const at::Tensor& starts, at::Device device) {
  at::Tensor future =
      at::ones({time, keys}, at::TensorOptions(at::kBool).device(device)).triu(keys - time + 1);
  if (!starts.defined()) return future;
  const at::Tensor places = at::arange(keys, starts.options());
  return future.logical_or(places < starts.view({starts.size(0), 1, time, 1}));
}

at::Tensor checked_starts(const at::Tensor& starts, int64_t batch, int64_t time, int64_t first) {
  if (!starts.defined()) return starts;
  LATHE_CHECK(starts.scalar_type() == at::kLong && starts.sizes() == at::IntArrayRef({batch, time}),
              "attention: starts must be int64 [", batch, ", ", time, "], not ", describe(starts));
  if (!starts.is_cpu() || is_dry_run()) return starts;
  at::Tensor there = starts.contiguous();
  const int64_t* at = there.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < batch; ++row) {
    for (int64_t t = 0, before = 0; t < time; before = *at, ++t, ++at) {
      LATHE_CHECK(*at >= before && *at <= first + t, "attention: position ", first + t, " of row ",
                  row, " has the start ", *at,
                  "; starts must not decrease along a row or be after their positions");
    }
  }
  return there;
}

at::ScalarType autocast_dtype(const Variable& x) {
  const bool autocast = mode().compute != at::kFloat;
  return autocast && x.dtype() != at::kDouble ? mode().compute : x.dtype();
}

DocumentBounds gpu_document_bounds(const at::Tensor& starts, const Variable& x, int64_t width) {
  const bool is_used = starts.defined() && starts.is_cuda() && starts.numel() > 0 &&
                       gpu_attention_ready(autocast_dtype(x), width);
  return is_used ? document_bounds(starts) : DocumentBounds{};
}

}  // namespace lathe
