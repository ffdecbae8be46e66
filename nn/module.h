// Modules are plain structs. A module's `visit` names its children. Everything that walks a model
// (parameters, buffers, state, init, device moves, tables) is a free function that calls visit().
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/parameter.h"

namespace lathe {

/// The functions that a walk over a model calls; empty functions are skipped. `place` refers to the
/// module's member, so that a function can replace the member.
struct Visitor {
  std::function<void(const NamedParameter& found, Variable& place)> parameter{};
  std::function<void(const std::string& path, at::Tensor& place)> buffer{};
  std::function<void(const std::string& path, uint64_t& place)> stream{};
  /// Called for each module within the model, before its members. `module` points to an object of
  /// type `type`. `block` has the same meaning as in NamedParameter.
  std::function<void(const std::string& path, int64_t block, std::type_index type, void* module)>
      module{};
};

/// Walks a module: v("name", child) visits a child. A child is a module; an optional, unique_ptr,
/// shared_ptr or pointer to a module, skipped if empty; or a vector, array or other range of
/// children, which are named by their indices.
class Visit {
 public:
  explicit Visit(Visitor visitor) : visitor_(std::move(visitor)) {}

  /// Visits a parameter. An undefined parameter (a bias that is off) is skipped.
  void operator()(std::string_view name, Variable& parameter, const Role& role);
  /// Visits a tensor that a module keeps and saves and that is not a parameter, such as batch
  /// norm's statistics. An undefined tensor is skipped.
  void buffer(std::string_view name, at::Tensor& tensor);
  /// Visits the stream of random numbers of the current module; see assign_random_streams().
  void stream(uint64_t& stream);

  template <class Child>
  void operator()(std::string_view name, Child& child) {
    const size_t length = path_.size();
    path_.append(name).append(".");
    into(child);
    path_.resize(length);
  }
  /// Visits the repeated blocks of a model. For each parameter and module within a block, the
  /// visitor's functions get the block's index.
  template <class Children>
  void blocks(std::string_view name, Children& children) {
    const std::string prefix = std::string(name) + ".";
    // Blocks within a block belong to the outer block.
    const int64_t outer = block_;
    int64_t i = 0;
    for (auto& child : children) {
      if (outer < 0) block_ = i;
      (*this)(prefix + std::to_string(i++), child);
    }
    block_ = outer;
  }
  /// Visits a child without adding a name to the path.
  template <class Child>
  void into(Child& child) {
    if constexpr (requires { child.visit(*this); }) {
      if (visitor_.module && !path_.empty())
        visitor_.module(path_.substr(0, path_.size() - 1), block_, typeid(Child), &child);
      child.visit(*this);
    } else if constexpr (requires { static_cast<bool>(child), *child; }) {
      if (child) into(*child);
    } else {
      static_assert(
          requires { child.begin(), child.end(); },
          "a child of a module needs `void visit(Visit& v)`, or must be a pointer, an optional or "
          "a range of such");
      int64_t i = 0;
      for (auto& element : child) (*this)(std::to_string(i++), element);
    }
  }

 private:
  Visitor visitor_;
  std::string path_;
  int64_t block_ = -1;
};

namespace detail {

/// Types that v.into() can walk.
template <class M>
concept Walkable = std::is_class_v<M> &&(
    requires(M& m, Visit& v) { m.visit(v); } || requires(M & m) { static_cast<bool>(m), *m; } ||
    requires(M & m) { (*m.begin()).visit(std::declval<Visit&>()); } || requires(M & m) { **m.begin(); });

template <class M>
void walk(const void* module, Visit& v) {
  v.into(*const_cast<M*>(static_cast<const M*>(module)));
}

}  // namespace detail

/// A reference to any module, for functions that change the module. A ModuleRef must not outlive
/// its module.
class ModuleRef {
 public:
  template <detail::Walkable M>
    requires(!std::is_const_v<M>)
  ModuleRef(M& module) : module_(&module), walk_(detail::walk<M>) {}
  void visit(Visit& v) const { walk_(module_, v); }

 private:
  const void* module_;
  void (*walk_)(const void*, Visit&);
};

/// A reference to any module, const or not, for functions that read the module or write into the
/// memory of its tensors.
class ConstModuleRef {
 public:
  template <detail::Walkable M>
  ConstModuleRef(const M& module) : module_(&module), walk_(detail::walk<M>) {}
  void visit(Visit& v) const { walk_(module_, v); }

 private:
  const void* module_;
  void (*walk_)(const void*, Visit&);
};

/// A buffer of a model: state that is saved and not trained.
struct NamedBuffer {
  std::string path;
  at::Tensor tensor;  ///< shares memory with the module's tensor
};

/// Returns every parameter in visiting order. A parameter that several members share (tied by
/// assignment) is listed once, under its first path. Throws if two parameters have the same path.
std::vector<NamedParameter> parameters(const ConstModuleRef& model);
/// Returns the parameters that an optimizer updates.
std::vector<NamedParameter> trained_parameters(const ConstModuleRef& model);
/// Returns every buffer in visiting order.
std::vector<NamedBuffer> buffers(const ConstModuleRef& model);

/// Calls f(path, block, layer) for each module of type Layer within a model.
template <class Layer>
void for_each_module(
    const ModuleRef& model,
    const std::function<void(const std::string& path, int64_t block, Layer& layer)>& f) {
  Visit visit(
      {.module = [&](const std::string& path, int64_t block, std::type_index type, void* module) {
        if (type == typeid(Layer)) f(path, block, *static_cast<Layer*>(module));
      }});
  model.visit(visit);
}

/// Replaces every parameter by the Variable that `make` returns for it; tied parameters stay tied.
/// Existing handles still refer to the old parameters.
void replace_parameters(const ModuleRef& model,
                        const std::function<Variable(const NamedParameter& found)>& make);
/// Replaces every buffer by the tensor that `make` returns for it.
void replace_buffers(const ModuleRef& model,
                     const std::function<at::Tensor(const NamedBuffer& found)>& make);
/// Replaces every parameter and buffer by a copy on `device`; floating-point tensors are converted
/// to `dtype`. Frozen parameters stay frozen, and quantized parameters stay unchanged.
void move_to(const ModuleRef& model, at::Device device, at::ScalarType dtype);
/// Drops the gradients of all parameters.
void zero_grad(const ConstModuleRef& model);
/// Freezes every parameter whose path matches `pattern` (see matches() in autograd/parameter.h), or
/// makes it trainable again if `frozen` is false. Returns the number of parameters that match.
/// Throws if none matches. Frozen parameters get no gradients and no updates.
int64_t freeze(const ConstModuleRef& model, std::string_view pattern, bool frozen = true);
/// Gives each layer that draws random numbers a stream that depends on the layer's path, so that
/// the layer's numbers do not depend on which other layers ran. If this function is not called,
/// such layers draw from one stream, in the order in which they run.
void assign_random_streams(const ModuleRef& model);

/// Parameters and buffers by path.
using StateDict = std::map<std::string, at::Tensor>;
/// Returns the tensors of the model, not copies: clone them to keep their values. Throws if a
/// parameter is quantized, or two tensors have the same path.
StateDict state_dict(const ConstModuleRef& model);
/// The paths that load_state_dict could not match.
struct LoadedState {
  std::vector<std::string> missing, unexpected;  ///< paths, sorted
};
/// Copies the values of `state` into the model's tensors, cast to the dtype and device of these
/// tensors. Tied parameters stay tied: `state` may have a tied parameter under any of its paths, or
/// under several paths with equal values. Throws one error for all mismatches of shapes and of
/// kinds of dtype (integer or floating point), and with `strict` for all missing and unexpected
/// paths. The error names the first 8 of each kind. After an error, the model is unchanged.
LoadedState load_state_dict(const ConstModuleRef& model, const StateDict& state,
                            bool strict = true);

/// Returns a parameter in float32 on the CPU that is zero until it is initialized. Under MetaInit
/// it is on the meta device; under WithoutMemory it has no memory yet (core/storage.h).
Variable new_parameter(at::IntArrayRef sizes);
/// Returns a buffer on the CPU that is filled with `value`. Under MetaInit it is on the meta
/// device.
at::Tensor new_buffer(at::IntArrayRef sizes, double value, at::ScalarType dtype = at::kFloat);

/// Returns the number of elements of all parameters. A parameter that is cut among tensor ranks
/// counts with its complete size.
int64_t count(const std::vector<NamedParameter>& parameters);
/// Returns a table of the path, shape and number of elements of each parameter, with the total.
std::string parameter_table(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
