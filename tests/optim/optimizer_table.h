// The table of optimizers under test: each kind with options, its oracle, and what makes it
// another.
#pragma once

#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {

using State = std::map<std::string, at::Tensor>;

/// What a reference knows of a step; p and everything that it makes of it are float64.
struct Step {
  const OptimConfig& c;
  double lr, wd, t;  // t: from 1
  Role role;
};
/// The parameter after a step, by a formula; `s` is the parameter's own, empty at first.
using Formula =
    std::function<at::Tensor(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k)>;

struct Row {
  std::string kind, label;
  std::function<void(OptimConfig&)> set;  ///< the options of the row
  Formula formula;                        ///< or
  std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor&, const Step&)> torch;
  std::function<void(OptimConfig&)> wrong;  ///< what makes it another optimizer, a little
};

/// A row or more for each kind.
std::vector<Row> optimizer_rows();

}  // namespace lathe::test
