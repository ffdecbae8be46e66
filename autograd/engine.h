// Backward passes through the graph.
#pragma once

#include <optional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Adds d(root)/d(parameter) to the gradient of every parameter that root depends on. `dy` is the
/// gradient with respect to root; if it is undefined, root must have one element, whose gradient is
/// 1. Throws if root depends on no parameter. Ops may write to a `dy` that was moved here and that
/// nothing else holds, as they do to gradients within the graph. Tensors that ops saved are freed
/// as the ops run, so a second backward through them throws unless the first one had `retain` set.
/// Nodes without saved tensors (an addition, a cast) can be shared by several graphs. The order is
/// deterministic: nodes run newest first, and a parameter as soon as its gradient is complete.
/// Threads may run separate graphs that share parameters.
void backward(const Variable& root, at::Tensor dy = {}, bool retain = false);

/// Returns d(root)/d(x) for each x without changing any parameter's gradient. The result is an
/// undefined Variable for an x that root does not depend on. Only nodes between root and the xs
/// run, and their saved tensors are freed unless `retain` is set. With create_graph, the results
/// can be differentiated again. `retain` defaults to create_graph.
std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs,
                           const Variable& dy = {}, bool create_graph = false,
                           std::optional<bool> retain = std::nullopt);

}  // namespace lathe
