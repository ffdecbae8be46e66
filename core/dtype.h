// Names of dtypes and short descriptions of tensors, for messages, configs and files.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/kernels/element.h"

namespace lathe {

/// Returns "float32", "bfloat16", "int64", ...
std::string dtype_name(at::ScalarType dtype);
/// Returns "float32[2,3]", or "undefined".
std::string describe(const at::Tensor& t);
/// Returns "[2,3]".
std::string describe(at::IntArrayRef sizes);
/// Returns the dtype of a config value: "fp32", "bf16", "fp16", "fp64", ... Throws Exit::internal
/// for another name.
at::ScalarType dtype_from_config(const std::string& name);
/// Returns safetensors' name of a dtype. Throws if it has none.
const char* safetensors_dtype(at::ScalarType dtype);
/// Returns the dtype of a safetensors name such as "BF16"; nullopt if Lathe has none.
std::optional<at::ScalarType> dtype_from_safetensors(const std::string& name);

/// Returns the kernels' element type for a dtype. Throws for a dtype that kernels do not take.
Element element_of(at::ScalarType dtype);
/// Returns the dtype of a kernel element type.
at::ScalarType dtype_of(Element type);

/// Converts `dim`, a dimension of an `ndim`-dimensional tensor that counts from the end if it is
/// negative, to an index from 0. Throws if it is out of range. As in PyTorch, a tensor without
/// dimensions accepts 0 and -1.
int64_t wrap_dim(int64_t dim, int64_t ndim);

/// Returns t converted to float32, or t itself if it is float64 or undefined.
at::Tensor at_least_float32(const at::Tensor& t);

/// Increments t's version counter. Call it after a kernel wrote through t's pointer, so that a
/// backward pass detects that a tensor that it saved was modified.
inline void bump_version(const at::Tensor& t) { t.unsafeGetTensorImpl()->bump_version(); }

}  // namespace lathe
