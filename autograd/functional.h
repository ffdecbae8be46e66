// Computes products of vectors with the Jacobians and Hessians of functions. Only the values of the
// inputs are used, not their graphs: f is called with new parameters of the same values.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// A function composed of Lathe's ops. Each function in this header calls the given function once.
using Function = std::function<Variable(const std::vector<Variable>&)>;

/// Returns f(xs), and v^T J for each x, where J is the Jacobian of f with respect to that x. The
/// product is zero for an x that f does not depend on. v has the shape of the result. An undefined
/// v stands for 1; the result must then have one element. See torch.autograd.functional.vjp.
std::pair<Variable, std::vector<Variable>> vjp(const Function& f, const std::vector<Variable>& xs,
                                               const Variable& v = {});
/// Returns f(xs), and J v in the shape of the result. `vs` has a vector for each x, in the shape of
/// that x. This takes two backward passes: the first one computes u^T J, which is linear in u, and
/// the second one the derivative of u^T J v with respect to u, which is J v. See
/// torch.autograd.functional.jvp.
std::pair<Variable, Variable> jvp(const Function& f, const std::vector<Variable>& xs,
                                  const std::vector<Variable>& vs);
/// Returns f(xs), which must have one element, and for each x its part of H v, where H is the
/// Hessian with respect to all xs. See Pearlmutter 1994, "Fast exact multiplication by the
/// Hessian", and torch.autograd.functional.vhp, which returns the same values because H is
/// symmetric.
std::pair<Variable, std::vector<Variable>> hvp(const Function& f, const std::vector<Variable>& xs,
                                               const std::vector<Variable>& vs);

}  // namespace lathe
