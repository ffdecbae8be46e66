// Backward passes through the graph.
#pragma once

#include <optional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Adds d(root)/d(parameter) to every parameter that root depends on. `dy` is the gradient of root
/// itself; undefined means 1, for a root of one element. Tensors that ops saved are freed as the
/// ops run, so a second backward through them throws unless `retain` is set. Nodes without saved
/// tensors (an addition, a cast) can be shared by several graphs. The order is deterministic: nodes
/// run newest first, and a parameter as soon as its gradient is complete. Threads may run separate
/// graphs that share parameters.
void backward(const Variable& root, const at::Tensor& dy = {}, bool retain = false);

/// Returns d(root)/d(x) for each x without touching any parameter's .grad; an undefined Variable
/// where root does not depend on x. Only nodes between root and the xs run and are freed; with
/// `retain` nothing is freed. With create_graph the results can be differentiated again, and
/// `retain` is the default.
std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs,
                           const Variable& dy = {}, bool create_graph = false,
                           std::optional<bool> retain = std::nullopt);

}  // namespace lathe
