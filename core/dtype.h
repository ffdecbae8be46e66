// Declares the names of dtypes and short descriptions of tensors, for messages, configs and files.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/kernels/element.h"

namespace lathe {

/// Returns the name of a dtype: "float32", "bfloat16", "int64", ...
std::string dtype_name(at::ScalarType dtype);
/// Returns the dtype and shape of t, such as "float32[2,3]"; "undefined" for an undefined tensor.
std::string describe(const at::Tensor& t);
/// Returns the sizes as text, such as "[2,3]".
std::string describe(at::IntArrayRef sizes);
/// Returns the dtype of a config value: "fp32", "bf16", "fp16", "fp64", ... Throws Exit::internal
/// for another name.
at::ScalarType dtype_from_config(const std::string& name);
/// Returns the name of a dtype in safetensors files. Throws if safetensors does not have this
/// dtype.
const char* safetensors_dtype(at::ScalarType dtype);
/// Returns the dtype with a safetensors name such as "BF16"; nullopt if Lathe does not support the
/// dtype.
std::optional<at::ScalarType> dtype_from_safetensors(const std::string& name);

/// Returns the kernels' element type for a dtype. Throws for a dtype that kernels do not support.
Element element_of(at::ScalarType dtype);
/// Returns the dtype of a kernel element type.
at::ScalarType dtype_of(Element type);

/// Converts a dimension of a tensor with `ndim` dimensions to an index that counts from 0. A
/// negative `dim` counts from the last dimension. Throws if `dim` is out of range. As in PyTorch, a
/// tensor without dimensions accepts 0 and -1.
int64_t wrap_dim(int64_t dim, int64_t ndim);

/// Returns the operand `value` of an op on x. As in PyTorch, a whole number is an integer if x has
/// an integer dtype or bool, so that the result is an integer.
at::Scalar scalar_for(const at::Tensor& x, double value);

/// Returns t converted to float32, or t itself if t is float64 or undefined.
at::Tensor at_least_float32(const at::Tensor& t);

/// Increments t's version counter. Call this after a kernel has written through t's pointer, so
/// that a backward pass detects a saved tensor that was modified.
inline void bump_version(const at::Tensor& t) { t.unsafeGetTensorImpl()->bump_version(); }

}  // namespace lathe
