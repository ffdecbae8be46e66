// What mixed precision keeps of a parameter beside its values. Made by amp/ and by loaders, read by
// ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lathe {

struct Fp8Scaling;
class QuantisedTensor;

struct Precision {
  at::ScalarType grad_dtype;  ///< of the parameter's gradient
  at::Tensor low;      ///< the low-precision working copy that ops read under autocast; undefined:
                       ///< there is none
  int64_t low_of = 0;  ///< the version of the parameter that `low` was written from
  std::shared_ptr<const QuantisedTensor> quantised;  ///< frozen values of a linear layer's weight,
                                                     ///< whose tensor is a shape alone; else null
  std::shared_ptr<const Fp8Scaling> fp8;  ///< of a linear layer that computes in fp8, else null

  explicit Precision(at::ScalarType grad_dtype_) : grad_dtype(grad_dtype_) {}
  /// Makes `low` the copy of `parameter`, as it is now, in `dtype`.
  void copy_low(const at::Tensor& parameter, at::ScalarType dtype);
  /// Writes the parameter into `low` where it was changed since `low` was written.
  void refresh_low(const at::Tensor& parameter);
  /// Says that `low` holds what the parameter holds now.
  void low_is_current(const at::Tensor& parameter) { low_of = parameter._version(); }
};

}  // namespace lathe
