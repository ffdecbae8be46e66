// Modules are plain structs. A module's `visit` names its children; everything that walks a model (parameters, state,
// init, device moves, tables) is a free function over visit().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/node.h"
#include "autograd/parameter.h"

namespace lathe {

/// Walks a module: v("name", child) goes into a child, a vector of children, or a parameter.
class Visit {
 public:
  using OnParameter = std::function<void(const std::string& path, Variable& parameter, Role role)>;
  explicit Visit(OnParameter on_parameter) : on_parameter_(std::move(on_parameter)) {}

  /// An undefined parameter (a bias that is off) is passed over.
  void operator()(std::string_view name, Variable& parameter, Role role) {
    if (parameter.defined()) on_parameter_(path_ + std::string(name), parameter, role);
  }
  template <class Module>
  void operator()(std::string_view name, Module& child) {
    const size_t length = path_.size();
    path_ += std::string(name) + ".";
    child.visit(*this);
    path_.resize(length);
  }
  template <class Module>
  void operator()(std::string_view name, std::vector<Module>& children) {
    const std::string prefix = std::string(name) + ".";
    for (size_t i = 0; i < children.size(); ++i) (*this)(prefix + std::to_string(i), children[i]);
  }

 private:
  OnParameter on_parameter_;
  std::string path_;
};

/// Every parameter in visiting order.
template <class Module>
std::vector<NamedParameter> parameters(Module& module) {
  std::vector<NamedParameter> out;
  Visit visit([&](const std::string& path, Variable& p, Role role) { out.push_back({path, p, role}); });
  module.visit(visit);
  return out;
}

/// Those that an optimizer has something to do with.
template <class Module>
std::vector<NamedParameter> trained_parameters(Module& module) {
  auto all = parameters(module);
  std::erase_if(all, [](const NamedParameter& p) { return !is_trained(p.parameter); });
  return all;
}

/// Replaces every parameter by what `make(path, parameter, role)` returns. Handles taken before stay with the old ones.
template <class Module, class Make>
void replace_parameters(Module& module, Make&& make) {
  Visit visit([&](const std::string& path, Variable& p, Role role) { p = make(path, p, role); });
  module.visit(visit);
}

/// Replaces every parameter by a copy on `device` in `dtype`.
template <class Module>
void move_to(Module& module, at::Device device, at::ScalarType dtype) {
  replace_parameters(module, [&](const std::string& path, const Variable& p, Role) {
    return Variable::parameter(p.data().to(device, dtype), path);
  });
}

/// Drops the gradients; frozen parameters have none.
template <class Module>
void zero_grad(Module& module) {
  Visit visit([](const std::string&, Variable& p, Role) {
    if (p.requires_grad()) p.leaf().grad.reset();
  });
  module.visit(visit);
}

int64_t count(const std::vector<NamedParameter>& parameters);
/// Name, shape and number of elements of each, and the total.
std::string parameter_table(const std::vector<NamedParameter>& parameters);

/// Checks x against a named shape such as "B T C": a letter given in `bound` must have that size, others are free but
/// must agree with themselves. The error names the layer and both shapes.
struct Bound {
  char name;
  int64_t size;
};
void check_shape(const char* layer, const at::Tensor& x, std::string_view spec,
                 std::initializer_list<Bound> bound = {});

}  // namespace lathe
