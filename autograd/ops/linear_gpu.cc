#include "autograd/ops/linear_gpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_passes.h"
#include "core/device.h"
#include "core/kernels/activation.h"
#include "core/kernels/linear_gpu.h"

namespace lathe {
namespace {

/// Returns whether cuBLASLt's fast kernels take x and the weight: both must be bfloat16 or both
/// float16, and the sizes of a row of x and of a row of the result must be multiples of 16 bytes.
bool product_ready(const at::Tensor& x, const at::Tensor& weight) {
  return gpu_kernel_ready(x) && gpu_kernel_ready(weight) && x.scalar_type() != at::kFloat &&
         x.scalar_type() == weight.scalar_type() && weight.size(0) % 8 == 0 &&
         weight.size(1) % 8 == 0;
}

LinearProduct product_of(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  return {.rows = rows_of(x),
          .in = weight.size(1),
          .out = weight.size(0),
          .type = element_of(x.scalar_type()),
          .y_type = element_of(y.scalar_type()),
          .x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .y = y.mutable_data_ptr()};
}

/// Returns the bias in the given dtype, contiguous and aligned as LinearProduct requires. An
/// undefined bias stays undefined.
at::Tensor bias_of_product(const at::Tensor& bias, at::ScalarType dtype) {
  if (!bias.defined()) return bias;
  const at::Tensor b = bias.to(dtype).contiguous();
  return is_aligned(b.const_data_ptr(), product_vector_alignment) ? b : b.clone();
}

}  // namespace

at::Tensor gpu_linear_with_residual(const at::Tensor& x_, const at::Tensor& weight_,
                                    const at::Tensor& bias, const at::Tensor& residual) {
  if (!product_ready(x_, weight_) || residual.scalar_type() != at::kFloat) return {};
  const at::Tensor x = for_kernels(x_), weight = for_kernels(weight_), add = for_kernels(residual),
                   b = bias_of_product(bias, at::kFloat);
  at::Tensor y = at::empty(add.sizes(), add.options());
  LinearProduct product = product_of(x, weight, y);
  product.bias = floats_of(b);
  product.residual = add.const_data_ptr();
  if (!cuda_api().linear_product(product)) return {};
  bump_version(y);
  return y;
}

at::Tensor gpu_linear_gelu(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias,
                           at::Tensor& before) {
  const at::Tensor x = for_kernels(x_), weight = for_kernels(weight_),
                   b = bias_of_product(bias, x.scalar_type());
  const auto sizes = with_last(x.sizes(), weight.size(0));
  if (product_ready(x, weight)) {
    at::Tensor y = at::empty(sizes, x.options()), u = at::empty(sizes, x.options());
    LinearProduct product = product_of(x, weight, y);
    product.bias = b.defined() ? b.const_data_ptr() : nullptr;
    product.before = u.mutable_data_ptr();
    if (cuda_api().linear_product(product)) {
      bump_version(y);
      bump_version(u);
      before = u;
      return y;
    }
  }

  before = aten_linear(x, weight, bias);
  return at::gelu(before, "tanh");
}

at::Tensor gpu_gelu_backward(const at::Tensor& u_, const at::Tensor& dy_, at::Tensor* sums) {
  const at::Tensor u = for_kernels(u_), dy = for_kernels(dy_.to(u.scalar_type())),
                   du = at::empty_like(u);
  const Element type = element_of(u.scalar_type());
  if (sums != nullptr && column_sums_on_gpu(u.size(-1))) {
    const int64_t columns = u.size(-1), rows = rows_of(u);
    const at::TensorOptions options = u.options().dtype(at::kFloat);
    const at::Tensor partials = at::empty({column_sum_scratch(rows, columns)}, options);
    *sums = at::empty({columns}, options);
    cuda_api().gelu_backward_sums(u.const_data_ptr(), dy.const_data_ptr(), du.mutable_data_ptr(),
                                  type, rows, columns, partials.mutable_data_ptr<float>(),
                                  sums->mutable_data_ptr<float>());
    bump_version(*sums);
  } else {
    cuda_api().gelu_backward(u.const_data_ptr(), dy.const_data_ptr(), du.mutable_data_ptr(), type,
                             u.numel());
    if (sums != nullptr) *sums = column_sums(du.view({rows_of(du), du.size(-1)}));
  }
  bump_version(du);
  return du;
}

at::Tensor gpu_swiglu(const at::Tensor& a_, const at::Tensor& b_) {
  const at::Tensor a = for_kernels(a_), b = for_kernels(b_);
  at::Tensor y = at::empty_like(a);
  const int64_t n = a.numel();
  const Element type = element_of(a.scalar_type());
  if (!swiglu_on_gpu(type, 1, n, n)) return at::silu(a) * b;
  cuda_api().swiglu_forward(a.const_data_ptr(), b.const_data_ptr(), y.mutable_data_ptr(), type, 1,
                            n, n);
  bump_version(y);
  return y;
}

std::pair<at::Tensor, at::Tensor> gpu_swiglu_backward(const at::Tensor& a_, const at::Tensor& b_,
                                                      const at::Tensor& dy_) {
  const at::Tensor a = for_kernels(a_), b = for_kernels(b_),
                   dy = for_kernels(dy_.to(a.scalar_type())), da = at::empty_like(a),
                   db = at::empty_like(a);
  const int64_t n = a.numel();
  const Element type = element_of(a.scalar_type());
  if (!swiglu_on_gpu(type, 1, n, n)) return {at::silu_backward(dy * b, a), dy * at::silu(a)};
  cuda_api().swiglu_backward(a.const_data_ptr(), b.const_data_ptr(), dy.const_data_ptr(),
                             da.mutable_data_ptr(), db.mutable_data_ptr(), type, 1, n, n);
  bump_version(da);
  bump_version(db);
  return {da, db};
}

at::Tensor added(const at::Tensor& residual, const at::Tensor& y) {
  if (!gpu_kernel_ready(residual) || !gpu_kernel_ready(y) || y.numel() % 4 != 0)
    return (residual + y).to(residual.scalar_type());
  const at::Tensor a = for_kernels(residual), b = for_kernels(y), out = at::empty_like(a);
  cuda_api().add(a.const_data_ptr(), element_of(a.scalar_type()), b.const_data_ptr(),
                 element_of(b.scalar_type()), out.mutable_data_ptr(), a.numel());
  bump_version(out);
  return out;
}

at::Tensor column_sums(const at::Tensor& dy_) {
  const bool is_narrow = dy_.is_cuda() && dy_.scalar_type() != at::kDouble;
  if (!gpu_kernel_ready(dy_) || !column_sums_on_gpu(dy_.size(1)))
    return is_narrow ? dy_.sum(0, /*keepdim=*/false, at::kFloat) : dy_.sum(0);
  const at::Tensor dy = for_kernels(dy_);
  const at::TensorOptions options = dy.options().dtype(at::kFloat);
  const int64_t rows = dy.size(0), columns = dy.size(1);
  const at::Tensor partials = at::empty({column_sum_scratch(rows, columns)}, options),
                   sums = at::empty({columns}, options);
  cuda_api().column_sums(matrix_of(dy), rows, columns, partials.mutable_data_ptr<float>(),
                         sums.mutable_data_ptr<float>());
  bump_version(sums);
  return sums;
}

}  // namespace lathe
