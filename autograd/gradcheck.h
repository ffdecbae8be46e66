// Checks that backward is the derivative of forward, by central differences.
#pragma once

#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Options of gradcheck().
struct GradcheckOptions {
  double step = 1e-6;  ///< multiplied by max(1, |x|) of an element x
  double tolerance =
      1e-5;  ///< relative to an input's largest derivative, for the truncation error of
             ///< differences; an allowance for rounding, proportional to 1 / step, is added
};

/// Compares the gradients of fn's result (of any shape, under a fixed cotangent) with central
/// differences, for every element of every floating-point input. Throws an Error that names the
/// first element that differs: "gradcheck: input 1, element [0,2]: backward gives ...". Calls fn
/// twice for each element, with floating-point inputs as float64 parameters and others unchanged.
/// fn must compute in float64 (no autocast) and must not draw random numbers that change from call
/// to call; both are checked. fn must be differentiable at the inputs. Inputs are not changed.
void gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
               const std::vector<Variable>& inputs, const GradcheckOptions& options = {});
/// Checks a function of one Variable.
void gradcheck(const std::function<Variable(const Variable&)>& fn, const Variable& input,
               const GradcheckOptions& options = {});

}  // namespace lathe
