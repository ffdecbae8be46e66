#include "nn/layers/linear.h"

#include "nn/module_call.h"

namespace lathe {

Linear::Linear(int64_t in, int64_t out, bool with_bias, const Role& role_)
    : weight(new_parameter({out, in})),
      bias(with_bias ? new_parameter({out}) : Variable()),
      role(role_) {}

Variable Linear::operator()(const Variable& x, const Variable& residual) const {
  ModuleCall call(*this, {{'I', weight.size(1)}, {'O', weight.size(0)}});
  call.input(x, "... I"), call.input("residual", residual, "... O");
  const Variable y = linear(x, weight, bias, residual);
  return call.result(has_adapter() ? y + linear(linear(x, lora_a), lora_b) * lora_scale : y,
                     "... O");
}

void Linear::add_adapter(int64_t rank, double alpha, at::TensorOptions options) {
  lora_a = Variable::parameter(at::zeros({rank, weight.size(1)}, options), "");
  lora_b = Variable::parameter(at::zeros({weight.size(0), rank}, options), "");
  lora_scale = alpha / static_cast<double>(rank);
}

void Linear::merge_adapter() {
  weight.data().add_(lora_b.data().matmul(lora_a.data()), lora_scale);
  lora_a = lora_b = {};
}

}  // namespace lathe
