#include "core/dtype.h"

#include <array>
#include <cmath>

#include "core/error.h"

namespace lathe {
namespace {

struct Names {
  at::ScalarType dtype;
  const char *name, *config, *safetensors;
};
// Columns: dtype, its name, its name in configs, its name in safetensors files.
constexpr std::array<Names, 12> all{{{at::kDouble, "float64", "fp64", "F64"},
                                     {at::kFloat, "float32", "fp32", "F32"},
                                     {at::kHalf, "float16", "fp16", "F16"},
                                     {at::kBFloat16, "bfloat16", "bf16", "BF16"},
                                     {at::kFloat8_e4m3fn, "float8_e4m3fn", "fp8", "F8_E4M3"},
                                     {at::kFloat8_e5m2, "float8_e5m2", "fp8_e5m2", "F8_E5M2"},
                                     {at::kLong, "int64", "int64", "I64"},
                                     {at::kInt, "int32", "int32", "I32"},
                                     {at::kShort, "int16", "int16", "I16"},
                                     {at::kChar, "int8", "int8", "I8"},
                                     {at::kByte, "uint8", "uint8", "U8"},
                                     {at::kBool, "bool", "bool", "BOOL"}}};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& n : all) {
    if (n.dtype == dtype) return n.name;
  }
  return c10::toString(dtype);
}

std::string describe(at::IntArrayRef sizes) {
  std::string out = "[";
  for (size_t i = 0; i < sizes.size(); ++i) out += (i ? "," : "") + std::to_string(sizes[i]);
  return out + "]";
}

at::Scalar scalar_for(const at::Tensor& x, double value) {
  const bool is_whole = std::trunc(value) == value && std::abs(value) <= 0x1p53;
  if (x.is_floating_point() || !is_whole) return value;
  return static_cast<int64_t>(value);
}

at::Tensor at_least_float32(const at::Tensor& t) {
  return !t.defined() || t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

std::string describe(const at::Tensor& t) {
  return t.defined() ? dtype_name(t.scalar_type()) + describe(t.sizes()) : "undefined";
}

at::ScalarType dtype_from_config(const std::string& name) {
  for (const auto& n : all) {
    if (name == n.config) return n.dtype;
  }
  fail(Exit::internal, "no dtype is called ", name);
}

const char* safetensors_dtype(at::ScalarType dtype) {
  for (const auto& n : all) {
    if (n.dtype == dtype) return n.safetensors;
  }
  fail(Exit::internal, "safetensors has no dtype ", dtype_name(dtype));
}

std::optional<at::ScalarType> dtype_from_safetensors(const std::string& name) {
  for (const auto& n : all) {
    if (name == n.safetensors) return n.dtype;
  }
  return std::nullopt;
}

Element element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return Element::f64;
    case at::kFloat: return Element::f32;
    case at::kBFloat16: return Element::bf16;
    case at::kHalf: return Element::f16;
    default: fail(Exit::internal, "no kernel supports the dtype ", dtype_name(dtype));
  }
}

at::ScalarType dtype_of(Element type) {
  switch (type) {
    case Element::f64: return at::kDouble;
    case Element::f32: return at::kFloat;
    case Element::bf16: return at::kBFloat16;
    case Element::f16: return at::kHalf;
  }
  return at::kFloat;
}

int64_t wrap_dim(int64_t dim, int64_t ndim) {
  const int64_t n = ndim > 0 ? ndim : 1;
  LATHE_CHECK(dim >= -n && dim < n, "dim ", dim, " is outside [", -n, ", ", n, ")");
  return dim < 0 ? dim + n : dim;
}

}  // namespace lathe
