// Implements elementwise arithmetic on small tensors.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace lathe {

/// Tensors of up to this many elements take longer to pass through ATen's dispatcher and
/// TensorIterator than to compute.
constexpr int64_t max_small = 1024;

/// Returns whether a tensor is float32, contiguous, on a CPU and small.
inline bool is_small(const at::Tensor& t) {
  return t.numel() <= max_small && t.scalar_type() == at::kFloat && t.device().is_cpu() &&
         t.layout() == at::kStrided && t.is_contiguous();
}

/// Returns f(a, b), where f is an operator such as std::plus<>. If a and b are small and have the
/// same shape, a plain loop computes the result. It is bitwise equal to ATen's result, since the
/// loop and ATen round each IEEE 754 operation once.
template <class F>
at::Tensor elementwise(const F& f, const at::Tensor& a, const at::Tensor& b) {
  if (!is_small(a) || !is_small(b) || a.sizes() != b.sizes()) return f(a, b);

  at::Tensor y = at::detail::empty_cpu(a.sizes(), at::kFloat);
  const float* const left = a.const_data_ptr<float>();
  const float* const right = b.const_data_ptr<float>();
  float* const result = y.mutable_data_ptr<float>();
  const int64_t n = y.numel();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) result[i] = f(left[i], right[i]);
  return y;
}

/// Returns f(a, number), computed in the same way.
template <class F>
at::Tensor elementwise(const F& f, const at::Tensor& a, double number) {
  if (!is_small(a)) return f(a, at::Scalar(number));

  at::Tensor y = at::detail::empty_cpu(a.sizes(), at::kFloat);
  const float* const left = a.const_data_ptr<float>();
  const auto right = static_cast<float>(number);
  float* const result = y.mutable_data_ptr<float>();
  const int64_t n = y.numel();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) result[i] = f(left[i], right);
  return y;
}

}  // namespace lathe
