#include "amp/amp.h"

#include "autograd/node.h"
#include "core/memory.h"

namespace lathe {

void make_working_copies(const std::vector<NamedParameter>& parameters, at::ScalarType dtype, bool low_grad,
                         bool tied) {
  if (dtype == at::kFloat) return;
  const MemoryScope scope(Memory::parameters);
  for (const auto& p : parameters) {
    const bool multiplied = p.role == Role::weight || p.role == Role::residual_weight ||
                            (tied && p.role == Role::embedding && p.path == "tokens.weight");
    if (!multiplied) continue;
    Leaf& leaf = p.parameter.leaf();
    leaf.low = p.parameter.data().to(dtype);
    if (low_grad) leaf.grad_dtype = dtype;
  }
}

void refresh_working_copies(const std::vector<NamedParameter>& parameters) {
  for (const auto& p : parameters) {
    if (Leaf& leaf = p.parameter.leaf(); leaf.low.defined()) leaf.low.copy_(p.parameter.data());
  }
}

}  // namespace lathe
