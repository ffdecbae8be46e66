// Declares the backward passes through the graph.
#pragma once

#include <optional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Adds d(root)/d(parameter) to the gradient of every parameter that root depends on. `dy` is the
/// gradient with respect to root; if it is undefined, root must have one element, whose gradient is
/// 1. Throws if root depends on no parameter. If the caller moves `dy` here and nothing else holds
/// its memory, ops may write to `dy`, as they do to gradients within the graph. Tensors that ops
/// saved are freed as the ops run, so a second backward through these ops throws unless the first
/// backward had `retain` set. Ops that save no tensors, such as an addition or a cast, can run
/// backward repeatedly and so can be shared by several graphs. The order is deterministic: nodes
/// run newest first, and a parameter accumulates its gradient as soon as the gradient is complete.
/// Several threads may run backward at the same time if their graphs share only parameters.
void backward(const Variable& root, at::Tensor dy = {}, bool retain = false);

/// Returns d(root)/d(x) for each x without changing any parameter's gradient. `dy` has the same
/// meaning as in backward(). The result is an undefined Variable for an x that root does not depend
/// on. Only nodes between root and the xs run, and their saved tensors are freed unless `retain` is
/// set. With create_graph, the results can be differentiated again. `retain` defaults to
/// create_graph.
std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs,
                           const Variable& dy = {}, bool create_graph = false,
                           std::optional<bool> retain = std::nullopt);

}  // namespace lathe
