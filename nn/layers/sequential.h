// Modules that run one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// Runs its modules one after another. Modules with parameters are named by their index:
/// "0.weight".
class Sequential {
 public:
  /// Appends a module and owns it. The module maps one Variable to another, and need not have a
  /// visit().
  template <class Module>
  Sequential& add(Module module) {
    auto held = std::make_shared<Module>(std::move(module));
    steps_.push_back({[held](const Variable& x) { return (*held)(x); },
                      [held](Visit& v, const std::string& name) {
                        if constexpr (requires { held->visit(v); }) v(name, *held);
                      }});
    return *this;
  }
  Variable operator()(Variable x) const {
    for (const auto& s : steps_) x = s.run(x);
    return x;
  }
  void visit(Visit& v) {
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i].visit(v, std::to_string(i));
  }

 private:
  struct Step {
    std::function<Variable(const Variable&)> run;
    std::function<void(Visit&, const std::string&)> visit;
  };
  std::vector<Step> steps_;
};

/// Returns a multi-layer perceptron with ReLU between its linear layers. `sizes`: {in, hidden...,
/// out}.
Sequential mlp(const std::vector<int64_t>& sizes);

}  // namespace lathe
