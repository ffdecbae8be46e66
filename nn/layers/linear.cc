#include "nn/layers/linear.h"

#include <ATen/ops/zeros.h>

#include "autograd/node.h"
#include "core/quantized.h"
#include "dist/tensor_ranks.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

/// Returns the Euclidean norm of each row, and not less than float32 can divide by.
at::Tensor row_norms(const at::Tensor& w) { return w.norm(2, 1).clamp_min(1e-30); }

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias, const Role& role_)
    : weight(new_parameter({out, in})),
      bias(with_bias ? new_parameter({out}) : Variable()),
      role(role_) {}

Variable Linear::input(const Variable& x) const {
  return is_cut(weight, 0) ? copy_to_tensor_ranks(x) : x;
}

Variable Linear::operator()(const Variable& x_, const Variable& residual) const {
  ModuleCall call(*this, {{'I', weight.size(1)}, {'O', weight.size(0)}});
  call.input(x_, "... I"), call.input("residual", residual, "... O");
  if (is_cut(weight, 1)) return call.result(sum_over_ranks(x_, residual), "... O");

  const Variable x = input(x_);
  if (has_adapter() && lora_m.defined()) {
    const at::Tensor norms_O = row_norms(adapted_weight());
    const Variable z = linear(x, weight) + linear(linear(x, lora_a), lora_b) * lora_scale;
    Variable y = z * (lora_m / Variable(norms_O));
    if (bias.defined()) y = y + bias;
    return call.result(residual.defined() ? residual + y : cast(y, z.dtype()), "... O");
  }
  const Variable y = linear(x, weight, bias, residual);
  return call.result(has_adapter() ? y + linear(linear(x, lora_a), lora_b) * lora_scale : y,
                     "... O");
}

/// Returns y where ranks have parts of the inputs. The bias and the residual are whole on each.
Variable Linear::sum_over_ranks(const Variable& x, const Variable& residual) const {
  const Variable z = reduce_from_tensor_ranks(linear(x, weight));
  const Variable y = bias.defined() ? z + bias : z;
  return residual.defined() ? residual + y : cast(y, z.dtype());
}

at::Tensor Linear::adapted_weight() const {
  const Precision* kept = precision_of(weight);
  const at::Tensor w = kept != nullptr && kept->quantized ? kept->quantized->dequantize(at::kFloat)
                                                          : weight.data().to(at::kFloat);
  return w.addmm(lora_b.data().to(at::kFloat), lora_a.data().to(at::kFloat), 1, lora_scale);
}

void Linear::add_adapter(int64_t rank, double alpha, at::TensorOptions options) {
  lora_a = Variable::parameter(at::zeros({rank, weight.size(1)}, options), "");
  lora_b = Variable::parameter(at::zeros({weight.size(0), rank}, options), "");
  lora_scale = alpha / static_cast<double>(rank);
}

void Linear::add_magnitudes() {
  // B is 0 at first, but need not be here.
  const at::Tensor b = lora_b.data().clone();
  lora_b.data().zero_();
  lora_m = Variable::parameter(row_norms(adapted_weight()), "");
  lora_b.data().copy_(b);
}

void Linear::merge_adapter() {
  if (lora_m.defined()) {
    const at::Tensor w = adapted_weight();
    weight.data().copy_(w * (lora_m.data() / row_norms(w)).unsqueeze(1));
  } else {
    weight.data().add_(lora_b.data().matmul(lora_a.data()), lora_scale);
  }
  lora_a = lora_b = lora_m = {};
}

}  // namespace lathe
