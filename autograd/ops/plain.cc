#include "autograd/ops/plain.h"

#include "autograd/engine.h"
#include "autograd/ops/formula.h"

namespace lathe {

Variable wide_of(const Variable& x) {
  return !x.defined() || x.dtype() == at::kDouble || x.dtype() == at::kFloat ? x
                                                                             : cast(x, at::kFloat);
}

GradList<Variable> plain_gradients(const std::vector<Variable>& inputs, const NeedsList& needs,
                                   const GradList<Variable>& dys, const PlainForm& f) {
  // Give each input a new position in the graph. If two inputs are the same Variable, their
  // gradients would otherwise arrive as a sum.
  std::vector<Variable> own = inputs, asked;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!needs[i]) continue;
    own[i] = reshape(own[i], own[i].sizes());
    asked.push_back(own[i]);
  }
  const std::vector<Variable> outputs = f(own);
  Variable root;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= dys.size() || !dys[i].defined()) continue;
    const Variable term = sum(outputs[i] * cast(dys[i], outputs[i].dtype()));
    root = root.defined() ? root + term : term;
  }
  GradList<Variable> grads(inputs.size());
  if (!root.defined() || !root.requires_grad()) return grads;
  const auto found = grad(root, asked, {}, /*create_graph=*/true);
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (needs[i]) grads[i] = found[next++];
  }
  return grads;
}

}  // namespace lathe
