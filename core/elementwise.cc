#include "core/elementwise.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "core/kernels/gemm.h"

namespace lathe {

ChainOp with_kernel(ChainOp op) {
  if (!gemm_ready(Element::f32)) return op;
  switch (op) {
    case ChainOp::tanh: return ChainOp::own_tanh;
    case ChainOp::silu: return ChainOp::own_silu;
    case ChainOp::gelu: return ChainOp::own_gelu;
    default: return op;
  }
}

bool has_elementwise(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  return x.is_cpu() && x.is_contiguous() && x.numel() > 0 && gemm_ready(Element::f32) &&
         (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
}

at::Tensor elementwise(ChainOp op, const at::Tensor& a, const at::Tensor& b) {
  // Chains have no float16. Computing in float32 and rounding once gives the same bits on any
  // number of threads, unlike ATen's kernels, which compute the last elements of each thread
  // differently.
  if (a.scalar_type() == at::kHalf) {
    const at::Tensor second = b.defined() ? b.to(at::kFloat) : b;
    return elementwise(op, a.to(at::kFloat), second).to(at::kHalf);
  }
  const bool low = a.scalar_type() == at::kBFloat16;
  const ChainType type = low ? ChainType::bf16 : ChainType::f32;
  const at::Tensor first = a.contiguous(), second = b.defined() ? b.contiguous() : at::Tensor(),
                   y = at::empty(a.sizes(), a.options());

  Chain chain;
  std::vector<const void*> inputs{first.const_data_ptr()};
  Chain::Step step{.op = op, .low = low};
  step.from[0] = chain.add_input({.type = type});
  if (second.defined()) {
    inputs.push_back(second.const_data_ptr());
    step.from[1] = chain.add_input({.type = type});
  }
  chain.add_output(chain.add_step(step), type);

  void* const outputs[]{y.mutable_data_ptr()};
  chain.run(inputs, outputs, y.numel());
  return y;
}

}  // namespace lathe
