// Names of dtypes and short descriptions of tensors, for messages, configs and files.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/kernels/element.h"

namespace lathe {

/// "float32", "bfloat16", "int64", ...
std::string dtype_name(at::ScalarType dtype);
/// "float32[2,3]", "undefined".
std::string describe(const at::Tensor& t);
/// "[2,3]".
std::string describe(at::IntArrayRef sizes);
/// A config's "fp32", "bf16", "fp16", "fp64".
at::ScalarType dtype_from_config(const std::string& name);
/// safetensors' name of a dtype, and back; nullopt for one it lacks.
const char* safetensors_dtype(at::ScalarType dtype);
/// The dtype of a safetensors name such as "BF16"; nothing for one that has none here.
std::optional<at::ScalarType> dtype_from_safetensors(const std::string& name);

/// The element type that kernels know a dtype by; an error for one they do not take.
Element element_of(at::ScalarType dtype);

/// Index of dimension `dim` (negative ones count from the end) of an `ndim`-dimensional tensor, or
/// an error.
int64_t wrap_dim(int64_t dim, int64_t ndim);

/// t in float32, or as it is where it is float64 or undefined.
at::Tensor at_least_float32(const at::Tensor& t);

/// Says that a kernel wrote through t's pointer, so that a stale saved tensor is noticed.
inline void bump_version(const at::Tensor& t) { t.unsafeGetTensorImpl()->bump_version(); }

}  // namespace lathe
