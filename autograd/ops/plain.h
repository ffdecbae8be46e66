// Second derivatives of fused ops: their formula in plain ops, whose graph is recorded when it is asked for.
#pragma once

#include <array>
#include <vector>

#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/mode.h"

namespace lathe {

/// The gradients of a fused op's inputs, as Variables at their places in the graph: those of `plain(inputs)`, a vector
/// of what the op gives, for the gradients dy of its results (undefined: none came).
template <size_t N, class Plain>
Grads<N, Variable> through_plain(const Plain& plain, const std::array<Variable, N>& inputs,
                                 const GradList<Variable>& dy, const Needs<N>& needs) {
  ModeGuard guard;  // what the op was under does not matter: its inputs have been cast
  mode().compute = at::kFloat;
  // Stand-ins, so that what one input is made of another by is not taken for this op's part.
  std::array<Variable, N> stand_ins;
  std::vector<Variable> wanted;
  for (size_t i = 0; i < N; ++i) {
    stand_ins[i] = inputs[i].defined() ? reshape(inputs[i], inputs[i].sizes()) : inputs[i];
    if (needs[i]) wanted.push_back(stand_ins[i]);
  }
  const std::vector<Variable> y = plain(stand_ins);
  Variable root;
  for (size_t k = 0; k < dy.size(); ++k) {
    if (!dy[k].defined()) continue;
    const Variable term = sum(mul(y[k], dy[k]));
    root = root.defined() ? add(root, term) : term;
  }
  std::vector<Variable> found = grad(root, wanted, {}, /*create_graph=*/true);
  Grads<N, Variable> grads;
  for (size_t i = 0, next = 0; i < N; ++i) {
    if (needs[i]) grads[i] = found[next++];
  }
  return grads;
}

/// In float32, or float64 as it is.
inline Variable plain_wide(const Variable& x) {
  return !x.defined() || x.dtype() == at::kDouble ? x : cast(x, at::kFloat);
}

}  // namespace lathe
