// Implements rotary position embeddings as one op.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/rotary.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/rotary.h"

namespace lathe {
namespace {

bool is_ready_on_gpu(const at::Tensor& x, int64_t heads, int64_t width) {
  return gpu_kernel_ready(x) &&
         rotation_on_gpu(element_of(x.scalar_type()), x.numel() / x.size(-1), heads, width);
}

struct Rotate {
  static constexpr OpInfo info{.name = "rotate", .each = {3, 3}};
  Saved angles;
  bool back;

  // (a cos - b sin, b cos + a sin) for each pair (a, b) of a head
  at::Tensor forward(const at::Tensor& given) const {
    const at::Tensor& rope_table = angles.data();
    const int64_t width = rope_table.size(-1), half = width / 2, heads = given.size(-1) / width;
    const at::Tensor x = given.contiguous();

    if (kernel_ready(x)) {
      at::Tensor y = at::empty_like(x);
      rotate_heads(x.const_data_ptr(), y.mutable_data_ptr(), element_of(x.scalar_type()),
                   x.numel() / x.size(-1), heads, width, rope_table.const_data_ptr<float>(),
                   rope_table.numel() / width, back);
      bump_version(y);
      return y;
    }

    if (is_ready_on_gpu(x, heads, width)) {
      const at::Tensor in = for_kernels(x), table = for_kernels(rope_table);
      at::Tensor y = at::empty_like(in);
      cuda_api().rotate_heads(in.const_data_ptr(), y.mutable_data_ptr(),
                              element_of(in.scalar_type()), in.numel() / in.size(-1), heads, width,
                              table.const_data_ptr<float>(), table.numel() / width, back);
      bump_version(y);
      return y;
    }

    // Rotate by ATen's ops, because no kernel supports this tensor.
    const at::Tensor pairs =
        x.to(rope_table.scalar_type()).view({x.size(0), x.size(1), heads, 2, half});
    const at::Tensor a = pairs.select(3, 0), b = pairs.select(3, 1),
                     around = rope_table.unsqueeze(-2);
    const at::Tensor cos = around.slice(-1, 0, half), sin = around.slice(-1, half);
    const at::Tensor s = back ? sin.neg() : sin;
    return at::cat({a * cos - b * s, b * cos + a * s}, -1).view(x.sizes()).to(x.scalar_type());
  }
  // dx = dy rotated by the opposite angles
  at::Tensor unrotated(const at::Tensor& dy) const { return Rotate{angles, !back}.forward(dy); }
  Variable unrotated(const Variable& dy) const { return apply(Rotate{angles, !back}, dy); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {unrotated(dy)};
  }
};

}  // namespace

at::Tensor checked_rope_table(const at::Tensor& rope_table, const Variable& x) {
  const auto sentence = [&](const char* what) {
    return str("rotate(", describe(x.data()), ", ", describe(rope_table), "): ", what);
  };
  LATHE_CHECK(rope_table.dim() >= 2 && rope_table.dim() <= 3 && x.dim() == 3 &&
                  rope_table.size(-1) > 0 && rope_table.size(-1) % 2 == 0 &&
                  x.size(2) % rope_table.size(-1) == 0 && rope_table.size(-2) == x.size(1) &&
                  (rope_table.dim() == 2 || rope_table.size(0) == x.size(0)),
              sentence("needs x [B, T, H D] and rope_table [T, D] or [B, T, D], D even"));
  LATHE_CHECK(rope_table.device() == x.data().device(),
              sentence("x and rope_table must be on one device"));
  return rope_table.to(x.dtype() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

Variable rotate(const Variable& x, const at::Tensor& rope_table) {
  require_defined("rotate", {&x});
  LATHE_CHECK(x.data().is_floating_point(), "rotate(", describe(x.data()),
              "): x must have a floating-point dtype");
  return apply(Rotate{checked_rope_table(rope_table, x), false}, x);
}

}  // namespace lathe
