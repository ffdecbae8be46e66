// A minimal state to save: two parameters, and an optimizer that has made one step on them.
#pragma once

#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"

namespace lathe::test {

struct Small {
  std::vector<NamedParameter> params{
      {"w", Variable::parameter(torch::linspace(-1, 1, 12).view({3, 4})), Role::weight},
      {"b", Variable::parameter(torch::linspace(0, 1, 3)), Role::bias}};
  Optimizer optimizer{OptimConfig{}, params};
  Small() {
    for (auto& p : params) p.parameter.leaf().grad = torch::full(p.parameter.sizes(), 0.3);
    optimizer.step(1e-3);
  }
};

}  // namespace lathe::test
