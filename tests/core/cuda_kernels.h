// Helpers for tests of GPU kernels. The tests run on the stand-in for CUDA (tests/support/cuda/),
// which runs CUDA kernels on the CPU. The helpers set the order in which the stand-in runs threads,
// and compare results.
#pragma once

#include <hwy/targets.h>

#include "core/dtype.h"
#include "tests/support/cuda/cuda_bf16.h"
#include "tests/support/cuda/cuda_fp16.h"
#include "tests/support/cuda/cuda_runtime.h"

namespace lathe::test {

using stand_in::Order;

inline constexpr Order orders[] = {Order::forward, Order::backward, Order::shuffled};
inline constexpr at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// Until destroyed, makes the stand-in run threads in this order, and makes the CPU's kernels use
/// the compiler's baseline instructions. On x86-64 these instructions have no fused multiply-add,
/// so the CPU's kernels and the CUDA kernels, which share the source of their formulas, round in
/// the same way. On other CPUs, a bit may differ.
struct ThreadOrder {
  int64_t targets = hwy::SupportedTargets();

  explicit ThreadOrder(Order order) {
    stand_in::order = order;
    hwy::GetChosenTarget().Update(HWY_STATIC_TARGET);
  }
  ~ThreadOrder() {
    stand_in::order = Order::forward;
    stand_in::max_blocks = INT32_MAX;
    hwy::GetChosenTarget().Update(targets);
  }
};

/// Returns whether two tensors are bitwise equal. Two NaNs count as equal, since their sign and
/// payload depend on the device.
inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.element_size() == 8   ? at::kLong
                    : a.element_size() == 4 ? at::kInt
                                            : at::kShort;
  return (a.view(bits).eq(b.view(bits)) | (a.isnan() & b.isnan())).all().item<bool>();
}

inline constexpr at::ScalarType narrow_dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
/// Returns the largest allowed error of a result. For bfloat16 and float16 this is one unit in the
/// last place of 1. For float32 it also allows for the rounding of sums.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
}

}  // namespace lathe::test
