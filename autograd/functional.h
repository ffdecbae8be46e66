// Derivatives of functions: products with Jacobians and Hessians. The inputs' values count, not
// their graphs; f is called with parameters of the same values.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Made of Lathe's ops; called once by each function below.
using Function = std::function<Variable(const std::vector<Variable>&)>;

/// f(xs), and v^T J for each x; zeros for an x that f does not depend on. v has f's shape;
/// undefined: 1, for a result of one element. torch.autograd.functional.vjp.
std::pair<Variable, std::vector<Variable>> vjp(const Function& f, const std::vector<Variable>& xs,
                                               const Variable& v = {});
/// f(xs), and J v, of f's shape; a v for each x. By two backward passes: v^T J is linear in v, and
/// its derivative in v is J. torch.autograd.functional.jvp.
std::pair<Variable, Variable> jvp(const Function& f, const std::vector<Variable>& xs,
                                  const std::vector<Variable>& vs);
/// f(xs), of one element, and H v for each x, H the Hessian in all xs. Pearlmutter 1994, "Fast
/// exact multiplication by the Hessian". torch.autograd.functional.vhp, whose product is the same
/// since H is symmetric.
std::pair<Variable, std::vector<Variable>> hvp(const Function& f, const std::vector<Variable>& xs,
                                               const std::vector<Variable>& vs);

}  // namespace lathe
