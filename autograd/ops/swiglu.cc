// Implements SwiGLU as one op.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_passes.h"
#include "autograd/ops/plain.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/activation.h"

namespace lathe {
namespace {

/// Returns the address of the second half of the first row of a contiguous tensor.
const void* second_half(const at::Tensor& t) {
  return static_cast<const char*>(t.const_data_ptr()) + t.size(-1) / 2 * t.element_size();
}
void* mutable_second_half(const at::Tensor& t) {
  return static_cast<char*>(t.mutable_data_ptr()) + t.size(-1) / 2 * t.element_size();
}

bool is_ready_on_gpu(const at::Tensor& x) {
  const int64_t h = x.size(-1) / 2;
  return gpu_kernel_ready(x) &&
         swiglu_on_gpu(element_of(x.scalar_type()), x.numel() / x.size(-1), h, 2 * h);
}

struct SwigluOp {
  static constexpr OpInfo info{.name = "swiglu", .each = {6, 10}, .elementwise = true};
  Saved x = Saved::input(0);

  // y = silu(a) b, [a b] = x
  at::Tensor forward(const at::Tensor& x_) {
    LATHE_CHECK(x_.dim() >= 1 && x_.size(-1) % 2 == 0, "the last dim must be even");
    x = x_.contiguous();
    const int64_t h = x_.size(-1) / 2;
    if (h == 0) return x_.clone();
    if (is_ready_on_gpu(x_)) {
      x = for_kernels(x_);
      const at::Tensor &in = x.data(), y = at::empty(with_last(in.sizes(), h), in.options());
      cuda_api().swiglu_forward(in.const_data_ptr(), second_half(in), y.mutable_data_ptr(),
                                element_of(in.scalar_type()), in.numel() / (2 * h), h, 2 * h);
      bump_version(y);
      return y;
    }
    if (!kernel_ready(x_)) {
      const auto parts = x.data().split(h, -1);
      return parts[0] * parts[0].sigmoid() * parts[1];
    }
    at::Tensor y = at::empty(with_last(x_.sizes(), h), x_.options());
    swiglu_forward(x.data().const_data_ptr(), y.mutable_data_ptr(), element_of(y.scalar_type()),
                   y.numel() / h, h);
    bump_version(y);
    return y;
  }
  // s = sigmoid(a):  da = dy b (s + a s (1 - s)), db = dy a s
  Grads<1> backward(const at::Tensor& dy_, Needs<1>) const {
    const at::Tensor dy = dy_.contiguous(), in = x.data();
    const int64_t h = in.size(-1) / 2;
    if (h == 0) return {dy};
    if (is_ready_on_gpu(in) && dy.scalar_type() == in.scalar_type()) {
      const at::Tensor up = for_kernels(dy), from = for_kernels(in), dx = at::empty_like(from);
      cuda_api().swiglu_backward(from.const_data_ptr(), second_half(from), up.const_data_ptr(),
                                 dx.mutable_data_ptr(), mutable_second_half(dx),
                                 element_of(in.scalar_type()), in.numel() / (2 * h), h, 2 * h);
      bump_version(dx);
      return {dx};
    }
    if (!kernel_ready(in)) {
      const auto parts = in.split(h, -1);
      const at::Tensor s = parts[0].sigmoid();
      return {at::cat({dy * parts[1] * (s + parts[0] * s * (1 - s)), dy * parts[0] * s}, -1)};
    }
    at::Tensor dx = at::empty_like(in);
    swiglu_backward(in.const_data_ptr(), second_half(in), dy.const_data_ptr(),
                    dx.mutable_data_ptr(), mutable_second_half(dx), element_of(in.scalar_type()),
                    dy.numel() / h, h, 2 * h);
    bump_version(dx);
    return {dx};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1> needs) const {
    return plain_gradients<1>({x.as<Variable>()}, needs, {dy}, [](const std::vector<Variable>& in) {
      const Variable wide = wide_of(in[0]);
      const int64_t h = wide.size(-1) / 2;
      return std::vector{silu(slice(wide, -1, 0, h)) * slice(wide, -1, h, 2 * h)};
    });
  }
};

}  // namespace

Variable swiglu(const Variable& x) { return apply(SwigluOp{}, x); }

}  // namespace lathe
