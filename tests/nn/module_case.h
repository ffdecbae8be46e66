// Declares the module table. Each row compares a module with its counterpart in torch::nn.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "nn/module.h"

namespace lathe::test {

using Weights = std::map<std::string, at::Tensor>;  ///< parameters as leaves of LibTorch's
                                                    ///< autograd, by their path in Lathe
using Tensors = std::vector<at::Tensor>;

struct ModuleCase {
  std::string module;  ///< the name of the module's type
  std::string label;
  Tensors inputs;  ///< float64; the gradients of all inputs are checked
  std::function<std::vector<NamedParameter>()> parameters;
  std::function<std::vector<Variable>(const std::vector<Variable>&)> ours;
  std::function<Tensors(const Weights&, const Tensors&)> theirs;
  bool checks_shape = true;  ///< false: the module accepts a first input of another size, so no
                             ///< error is expected
};

/// Returns all rows. Each module that can be called (its operator() creates a ModuleCall) has a
/// row, except model kinds and their blocks.
const std::vector<ModuleCase>& module_table();
/// Compares results and gradients with LibTorch, and gradients also with central differences.
/// Checks that an input with a wrong shape is an error. Returns the failures.
std::vector<std::string> check_module(const ModuleCase& row);

/// Returns the row of a module. `ours` and `theirs` may each return one result or several.
template <class M, class Ours, class Theirs>
ModuleCase module_row(const std::string& name, const std::string& label, M made, Tensors inputs,
                      Ours ours, Theirs theirs) {
  auto module = std::make_shared<M>(std::move(made));
  if constexpr (requires(Visit& v) { module->visit(v); }) move_to(*module, at::kCPU, at::kDouble);
  ModuleCase row{name, label, std::move(inputs), {}, {}, {}};
  row.parameters = [module]() -> std::vector<NamedParameter> {
    if constexpr (requires(Visit& v) { module->visit(v); }) {
      return parameters(*module);
    } else {
      return {};
    }
  };
  row.ours = [module, ours](const std::vector<Variable>& x) -> std::vector<Variable> {
    return {ours(*module, x)};
  };
  row.theirs = [theirs](const Weights& w, const Tensors& x) -> Tensors { return {theirs(w, x)}; };
  return row;
}

}  // namespace lathe::test
