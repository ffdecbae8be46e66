// A row of the module table: a module beside torch::nn's with the same weights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "nn/module.h"

namespace lathe::test {

using Weights = std::map<std::string, at::Tensor>;  ///< by our paths; leaves of LibTorch's autograd
using Tensors = std::vector<at::Tensor>;

struct ModuleCase {
  std::string module;  ///< its type's name
  std::string label;
  Tensors inputs;  ///< float64; gradients of all are checked
  std::function<std::vector<NamedParameter>()> parameters;
  std::function<std::vector<Variable>(const std::vector<Variable>&)> ours;
  std::function<Tensors(const Weights&, const Tensors&)> theirs;
  bool checks_shape = true;  ///< false: the last dim of its first input may have any size
};

/// Every row; at least one for each module that makes a ModuleCall, but for the model kinds and
/// their blocks.
const std::vector<ModuleCase>& module_table();
/// Results and gradients against LibTorch's, gradients against central differences, and the
/// sentence for an input that does not fit; what failed.
std::vector<std::string> check_module(const ModuleCase& row);

/// A row of a module; `ours` and `theirs` give one result or several.
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
