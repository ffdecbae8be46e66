// Modules are plain structs. A module's `visit` names its children; everything that walks a model (parameters, state,
// init, device moves, tables) is a free function over visit().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/parameter.h"

namespace lathe {

/// Walks a module: v("name", child) goes into a child, a vector of children, or a parameter.
class Visit {
 public:
  using OnParameter = std::function<void(const NamedParameter& found, Variable& place)>;
  /// A module within the model, before what is in it; `path` as parameters have it, `block` as in NamedParameter.
  using OnModule = std::function<void(const std::string& path, int64_t block, std::type_index type, void* module)>;
  explicit Visit(OnParameter on_parameter, OnModule on_module = nullptr)
      : on_parameter_(std::move(on_parameter)), on_module_(std::move(on_module)) {}

  /// An undefined parameter (a bias that is off) is passed over.
  void operator()(std::string_view name, Variable& parameter, Role role) {
    if (parameter.defined()) on_parameter_({path_ + std::string(name), parameter, role, block_}, parameter);
  }
  template <class Module>
  void operator()(std::string_view name, Module& child) {
    const size_t length = path_.size();
    path_ += name;
    if (on_module_) on_module_(path_, block_, typeid(Module), &child);
    path_ += ".";
    child.visit(*this);
    path_.resize(length);
  }
  template <class Module>
  void operator()(std::string_view name, std::vector<Module>& children) {
    const std::string prefix = std::string(name) + ".";
    for (size_t i = 0; i < children.size(); ++i) (*this)(prefix + std::to_string(i), children[i]);
  }
  /// The blocks that a model repeats, its bulk: their parameters know which block they are in, which fp8 layers and
  /// quantised loading go by.
  template <class Module>
  void blocks(std::string_view name, std::vector<Module>& children) {
    const std::string prefix = std::string(name) + ".";
    for (size_t i = 0; i < children.size(); ++i) {
      block_ = static_cast<int64_t>(i);
      (*this)(prefix + std::to_string(i), children[i]);
    }
    block_ = -1;
  }

 private:
  OnParameter on_parameter_;
  OnModule on_module_;
  std::string path_;
  int64_t block_ = -1;
};

/// Every parameter in visiting order. One that stands in several places (tied by assignment) is there once, under its
/// first path.
template <class Module>
std::vector<NamedParameter> parameters(Module& module) {
  std::vector<NamedParameter> out;
  std::set<const void*> seen;
  Visit visit([&](const NamedParameter& found, Variable&) {
    if (seen.insert(found.parameter.data().unsafeGetTensorImpl()).second) out.push_back(found);
  });
  module.visit(visit);
  return out;
}

/// Calls f(path, block, layer) for each module of type Layer in a model, the model itself left out.
template <class Layer, class Module, class F>
void for_each_module(Module& module, F&& f) {
  Visit visit([](const NamedParameter&, Variable&) {},
              [&](const std::string& path, int64_t block, std::type_index type, void* found) {
                if (type == typeid(Layer)) f(path, block, *static_cast<Layer*>(found));
              });
  module.visit(visit);
}

/// Those that an optimizer has something to do with.
template <class Module>
std::vector<NamedParameter> trained_parameters(Module& module) {
  auto all = parameters(module);
  std::erase_if(all, [](const NamedParameter& p) { return !is_trained(p.parameter); });
  return all;
}

/// Replaces every parameter by what `make(found)` returns; what was tied stays tied. Handles taken before stay with the
/// old ones.
template <class Module, class Make>
void replace_parameters(Module& module, Make&& make) {
  std::map<const void*, std::pair<Variable, Variable>> made;  // old, kept so that its address stays its own, and new
  Visit visit([&](const NamedParameter& found, Variable& place) {
    const void* key = found.parameter.data().unsafeGetTensorImpl();
    auto at = made.find(key);
    if (at == made.end()) at = made.emplace(key, std::pair(found.parameter, make(found))).first;
    place = at->second.second;
  });
  module.visit(visit);
}

/// Replaces every parameter by a copy on `device` in `dtype`; frozen ones stay frozen, quantised ones as they are.
template <class Module>
void move_to(Module& module, at::Device device, at::ScalarType dtype) {
  replace_parameters(module, [&](const NamedParameter& p) {
    if (p.parameter.as_leaf() != nullptr && !is_trained(p.parameter)) return p.parameter;
    at::Tensor copy = p.parameter.data().to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
    return p.parameter.requires_grad() ? Variable::parameter(std::move(copy), p.path) : Variable(std::move(copy));
  });
}

/// Drops the gradients; frozen parameters have none.
template <class Module>
void zero_grad(Module& module) {
  Visit visit([](const NamedParameter& found, Variable&) {
    if (Leaf* leaf = found.parameter.as_leaf()) leaf->grad.reset();
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
