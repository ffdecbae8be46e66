// Running the graph backward.
#pragma once

#include <optional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Adds d(root)/d(parameter) to every parameter that root depends on. `dy` is root's own gradient;
/// undefined means 1, for a root of one element. What ops saved is freed as they run, so a second
/// backward through them is an error unless `retain`; what saved nothing (an addition, a cast) may
/// run again, in another graph that shares it. Deterministic: nodes run newest first, a parameter
/// as soon as its gradient is complete. Threads may run graphs of their own that share parameters.
void backward(const Variable& root, const at::Tensor& dy = {}, bool retain = false);

/// d(root)/d(x) for each x, without touching any parameter's .grad; an undefined Variable where
/// root does not depend on x. Only what lies between root and the xs runs and is freed; `retain`
/// frees nothing. With create_graph the results can be differentiated again, and `retain` is the
/// default.
std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs,
                           const Variable& dy = {}, bool create_graph = false,
                           std::optional<bool> retain = std::nullopt);

}  // namespace lathe
