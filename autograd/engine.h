// Running the graph backward.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Adds d(root)/d(parameter) to every parameter that root depends on. `dy` is root's own gradient; undefined means 1,
/// for a root of one element. What ops saved is freed as they run, so a second backward is an error unless `retain`.
/// Deterministic: nodes run newest first, a parameter as soon as its gradient is complete.
void backward(const Variable& root, const at::Tensor& dy = {}, bool retain = false);

/// d(root)/d(x) for each x, without touching any parameter's .grad; an undefined Variable where root does not depend on
/// x. With create_graph the results can be differentiated again (the graph is then kept).
std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs, const Variable& dy = {},
                           bool create_graph = false);

}  // namespace lathe
