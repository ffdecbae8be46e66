// Second derivatives of fused ops: under create_graph, the gradients of an op are computed through
// its plain form, which is composed of ops that have second derivatives.
//
// Each input gets its own position in the graph. The plain form is computed from these inputs, and
// its gradients are computed with create_graph.
#pragma once

#include <functional>
#include <vector>

#include "autograd/node.h"
#include "autograd/variable.h"

namespace lathe {

/// Computes an op's outputs from its inputs by ops that have second derivatives.
using PlainForm = std::function<std::vector<Variable>(const std::vector<Variable>& inputs)>;

/// Returns the gradients of those of an op's `inputs` that `needs` marks, given the gradients `dys`
/// of its outputs. The results can be differentiated again. `inputs` are connected to the graph
/// (Saved::as<Variable>). `f` computes the outputs by ops that have second derivatives, possibly in
/// a wider dtype. Undefined dys are skipped.
GradList<Variable> plain_gradients(const std::vector<Variable>& inputs, const NeedsList& needs,
                                   const GradList<Variable>& dys, const PlainForm& f);

/// Does the same for an op of N inputs.
template <size_t N>
std::array<Variable, N> plain_gradients(const std::array<Variable, N>& inputs,
                                        const std::array<bool, N>& needs,
                                        const GradList<Variable>& dys, const PlainForm& f) {
  std::array<Variable, N> out;
  auto grads = plain_gradients(std::vector<Variable>(inputs.begin(), inputs.end()),
                               NeedsList(needs.begin(), needs.end()), dys, f);
  std::move(grads.begin(), grads.end(), out.begin());
  return out;
}

/// Returns x in float32, or x itself if it is float64, float32 or undefined.
Variable wide_of(const Variable& x);

}  // namespace lathe
