// Declares the table of optimizers under test. Each row has an optimizer kind with its options, an
// oracle, and a change of the options that must change the results.
#pragma once

#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {

using State = std::map<std::string, at::Tensor>;

/// The arguments of a step of a reference implementation, which computes in float64.
struct Step {
  const OptimConfig& c;
  double lr, wd, t;  // learning rate, weight decay, and the number of the step, from 1
  Role role;
};
/// Returns the parameter after a step. `s` is the state of this parameter, which is empty at first.
using Formula =
    std::function<at::Tensor(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k)>;

struct Row {
  std::string kind, label;
  std::function<void(OptimConfig&)> set;  ///< sets the options of the row
  Formula formula;                        ///< the oracle, unless `torch` is set
  std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor&, const Step&)> torch;
  std::function<void(OptimConfig&)> wrong;  ///< changes an option, so that results must differ
};

/// Returns the table, which has at least one row for each kind.
std::vector<Row> optimizer_rows();

}  // namespace lathe::test
