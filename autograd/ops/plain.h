// Second derivatives of fused ops: under create_graph an op's gradients go through a plain form of
// it.
//
// Each input gets its own position in the graph. The plain form is computed from these, and its
// gradients are taken with create_graph.
#pragma once

#include <functional>
#include <vector>

#include "autograd/node.h"
#include "autograd/variable.h"

namespace lathe {

using PlainForm = std::function<std::vector<Variable>(const std::vector<Variable>& inputs)>;

/// Gradients of `inputs` (an op's, at their places in the graph: Saved::as<Variable>) that `needs`
/// marks, for those of the op's outputs, where `f` computes the outputs by ops that have second
/// derivatives; the gradients can be differentiated again. Undefined dys are passed over; outputs
/// may be in a wider dtype than the op's.
GradList<Variable> plain_gradients(const std::vector<Variable>& inputs, const NeedsList& needs,
                                   const GradList<Variable>& dys, const PlainForm& f);

/// The same for an op of N inputs and one output.
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

/// In float32, or float64 as it is.
Variable wide_of(const Variable& x);

}  // namespace lathe
