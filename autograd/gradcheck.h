// Whether backward is the derivative of forward, by central differences.
#pragma once

#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

struct GradcheckOptions {
  double step = 1e-6;  ///< times the larger of 1 and an element's size
  double tolerance =
      1e-5;  ///< relative to an input's largest derivative: room for what differences cut off. What
             ///< they lose by rounding, 1e-8 of the result's size, is allowed on top
};

/// Throws an Error that names the first wrong element, "gradcheck: input 1, element [0,2]: backward
/// gives ...", unless the gradients of fn's result (of any shape, under a fixed cotangent) agree
/// with central differences for every element of every floating-point input. fn is called with the
/// inputs as float64 parameters (those of other dtypes as they are), two times for each element: it
/// must compute in float64 (no autocast), draw no random numbers of its own that change from call
/// to call, and have no kink at the inputs; the first two are checked. Inputs are not changed.
void gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
               const std::vector<Variable>& inputs, const GradcheckOptions& options = {});
/// The same for a function of one Variable.
void gradcheck(const std::function<Variable(const Variable&)>& fn, const Variable& input,
               const GradcheckOptions& options = {});

}  // namespace lathe
