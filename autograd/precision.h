// Defines the state of a parameter for mixed precision. amp/ and loaders set this state, and ops
// read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lathe {

struct Fp8Scaling;
class QuantizedTensor;

/// The mixed-precision state of a parameter (Leaf::precision).
struct Precision {
  at::ScalarType grad_dtype;  ///< dtype of the parameter's gradient
  at::Tensor low;  ///< the low-precision working copy that ops read under autocast; undefined if
                   ///< there is none
  int64_t low_version = 0;  ///< the version of the parameter that was copied into `low`
  std::shared_ptr<const QuantizedTensor>
      quantized;  ///< the frozen values of a linear layer's weight, whose tensor then has a shape
                  ///< but no storage; null if the weight is not quantized
  std::shared_ptr<const Fp8Scaling> fp8;  ///< the source of fp8 scales; null if the layer does not
                                          ///< compute in fp8

  explicit Precision(at::ScalarType grad_dtype_) : grad_dtype(grad_dtype_) {}
  /// Sets `low` to a copy of `parameter` in `dtype`.
  void copy_low(const at::Tensor& parameter, at::ScalarType dtype);
  /// Copies the parameter into `low` if it was changed since `low` was written.
  void refresh_low(const at::Tensor& parameter);
  /// Marks `low` as a copy of the current values of the parameter.
  void mark_low_current(const at::Tensor& parameter) { low_version = parameter._version(); }
};

}  // namespace lathe
