#include "nn/layers/linear.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "autograd/node.h"
#include "core/quantized.h"
#include "dist/collectives.h"
#include "dist/sequence_ranks.h"
#include "nn/module_call.h"

namespace lathe {
Linear::Linear(int64_t in, int64_t out, bool with_bias, const Role& role_)
    : weight(new_parameter({out, in})),
      bias(with_bias ? new_parameter({out}) : Variable()),
      role(role_) {}

Variable Linear::operator()(const Variable& x, const Variable& residual) const {
  ModuleCall call(*this, {{'I', weight.size(1)}, {'O', weight.size(0)}});
  call.input(x, "... I");
  call.input("residual", residual, "... O");
  const bool scales_rows = has_adapter() && lora_m.defined();
  if (!is_cut(weight, 1) && !scales_rows) {
    const Variable y = with_input(
        x, [this, residual](const Variable& in) { return linear(in, weight, bias, residual); });
    return call.result(has_adapter() ? y + adapted(x) : y, "... O");
  }

  // Magnitudes scale the matrix product before the bias is added. If the inputs are cut, each rank
  // has the complete bias and residual, which are added after the sum over the ranks.
  Variable z = with_input(x, [this](const Variable& in) { return linear(in, weight); });
  if (is_cut(weight, 1)) z = output_of_cut_inputs(z);
  if (has_adapter()) z = z + adapted(x);
  Variable y = scales_rows ? z * (lora_m / Variable(row_norms(adapted_weight()))) : z;
  if (bias.defined()) y = y + bias;
  return call.result(residual.defined() ? residual + y : cast(y, z.dtype()), "... O");
}

Variable Linear::adapted(const Variable& x) const {
  Variable h = linear(x, lora_a);
  if (is_cut(lora_a, 1)) h = output_of_cut_inputs(h);
  if (is_cut(lora_b, 0)) h = input_of_cut_outputs(h);
  return linear(h, lora_b) * lora_scale;
}

at::Tensor Linear::plain_weight() const {
  const Precision* kept = precision_of(weight);
  return kept != nullptr && kept->quantized ? kept->quantized->dequantize(at::kFloat)
                                            : weight.data().to(at::kFloat);
}

at::Tensor Linear::adapted_weight() const {
  return plain_weight().addmm(lora_b.data().to(at::kFloat), lora_a.data().to(at::kFloat), 1,
                              lora_scale);
}

at::Tensor Linear::row_norms(const at::Tensor& w) const {
  at::Tensor norms = w.norm(2, 1);
  if (is_cut(weight, 1)) norms = all_reduce(norms.square(), Axis::tensor).sqrt();
  return norms.clamp_min(1e-30);
}

void Linear::add_adapter(int64_t rank, double alpha, at::TensorOptions options) {
  const std::vector<int64_t> whole = full_sizes(weight);
  lora_a = Variable::parameter(at::zeros({rank, whole[1]}, options), "");
  lora_b = Variable::parameter(at::zeros({whole[0], rank}, options), "");
  lora_scale = alpha / static_cast<double>(rank);
}

void Linear::add_magnitudes() {
  lora_m = Variable::parameter(row_norms(plain_weight()), "");
  if (is_cut(weight, 0)) lora_m.leaf().cut = weight.leaf().cut;
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
