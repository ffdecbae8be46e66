// Computes second derivatives of fused ops. Under create_graph, the gradients of an op are computed
// through its plain form, which is composed of ops that have second derivatives.
//
// Each input that needs a gradient gets a new position in the graph. The plain form is computed
// from these inputs, and the gradients of the plain form are computed with create_graph.
#pragma once

#include <functional>
#include <vector>

#include "autograd/node.h"
#include "autograd/variable.h"

namespace lathe {

/// Computes an op's outputs from its inputs by ops that have second derivatives.
using PlainForm = std::function<std::vector<Variable>(const std::vector<Variable>& inputs)>;

/// Returns the gradients of the inputs that `needs` marks, given the gradients `dys` of the op's
/// outputs. The results can be differentiated again. `inputs` are the inputs of the op, connected
/// to the graph (Saved::as<Variable>). `f` computes the outputs by ops that have second
/// derivatives, possibly in a wider dtype. Undefined members of `dys` are skipped.
GradList<Variable> plain_gradients(const std::vector<Variable>& inputs, const NeedsList& needs,
                                   const GradList<Variable>& dys, const PlainForm& f);

/// Returns plain_gradients() for an op of N inputs.
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
