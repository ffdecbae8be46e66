// Checks that backward is the derivative of forward, by central differences.
#pragma once

#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Options of gradcheck().
struct GradcheckOptions {
  double step = 1e-6;       ///< step size, multiplied by max(1, |x|) for an element x
  double tolerance = 1e-5;  ///< tolerance of the truncation error of differences, relative to an
                            ///< input's largest derivative; gradcheck() adds a tolerance of
                            ///< rounding errors, proportional to 1 / step
};

/// Compares the gradients of fn's result with central differences, for every element of every
/// floating-point input. The result may have any shape: it is multiplied by a fixed random
/// cotangent. Throws an Error that names the first element that differs: "gradcheck: input 1,
/// element [0,2]: backward gives ...". Calls fn twice for each element, with floating-point inputs
/// as float64 parameters and others unchanged. fn must compute in float64 (no autocast) and must
/// not draw random numbers that change from call to call; gradcheck() checks both. fn must be
/// differentiable at the inputs. Inputs are not changed.
void gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
               const std::vector<Variable>& inputs, const GradcheckOptions& options = {});
/// Checks a function of one Variable.
void gradcheck(const std::function<Variable(const Variable&)>& fn, const Variable& input,
               const GradcheckOptions& options = {});

}  // namespace lathe
