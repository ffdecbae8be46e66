// Modules are plain structs. A module's `visit` names its children; everything that walks a model
// (parameters, buffers, state, init, device moves, tables) is a free function over visit().
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

/// What a walk does with what it meets; an empty function passes over it. `place` is the module's
/// own member.
struct Visitor {
  std::function<void(const NamedParameter& found, Variable& place)> parameter{};
  std::function<void(const std::string& path, at::Tensor& place)> buffer{};
  std::function<void(const std::string& path, uint64_t& place)> stream{};
  /// A module of type `type` within the model, before what is in it; `block` as in NamedParameter.
  std::function<void(const std::string& path, int64_t block, std::type_index type, void* module)>
      module{};
};

/// Walks a module: v("name", child) goes into a child. A child is a module; an optional,
/// unique_ptr, shared_ptr or pointer to one, passed over where it is empty; or a vector, array or
/// other range of children, whose names are their places.
class Visit {
 public:
  explicit Visit(Visitor visitor) : visitor_(std::move(visitor)) {}

  /// A parameter. An undefined one (a bias that is off) is passed over.
  void operator()(std::string_view name, Variable& parameter, const Role& role);
  /// What a module keeps and saves that is no parameter, such as batch norm's statistics.
  /// Undefined: passed over.
  void buffer(std::string_view name, at::Tensor& tensor);
  /// The stream of random numbers of the module that is visited; see place().
  void stream(uint64_t& stream);

  template <class Child>
  void operator()(std::string_view name, Child& child) {
    const size_t length = path_.size();
    path_.append(name).append(".");
    into(child);
    path_.resize(length);
  }
  /// The blocks that a model repeats, its bulk: their parameters know which block they are in,
  /// which fp8 layers and quantized loading go by.
  template <class Children>
  void blocks(std::string_view name, Children& children) {
    const std::string prefix = std::string(name) + ".";
    int64_t i = 0;
    for (auto& child : children) {
      block_ = i;
      (*this)(prefix + std::to_string(i++), child);
    }
    block_ = -1;
  }
  /// A child that adds nothing to the path.
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

/// What v.into() can walk.
template <class M>
concept Walkable = std::is_class_v<M> &&(
    requires(M& m, Visit& v) { m.visit(v); } || requires(M & m) { static_cast<bool>(m), *m; } ||
    requires(M & m) { (*m.begin()).visit(std::declval<Visit&>()); } || requires(M & m) { **m.begin(); });

template <class M>
void walk(const void* module, Visit& v) {
  v.into(*const_cast<M*>(static_cast<const M*>(module)));
}

}  // namespace detail

/// Any module, for functions that change it; what they take as `model`. Valid as long as the
/// module.
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

/// Any module, const or not, for functions that look at it, or write into the memory that it
/// shares.
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
  at::Tensor tensor;  ///< shares its memory with the module's
};

/// Every parameter in visiting order. One that stands in several places (tied by assignment) is
/// there once, under its first path. An error where two have one path.
std::vector<NamedParameter> parameters(const ConstModuleRef& model);
/// Those that an optimizer has something to do with.
std::vector<NamedParameter> trained_parameters(const ConstModuleRef& model);
/// Every buffer in visiting order.
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

/// Replaces every parameter by what `make(found)` returns; what was tied stays tied. Handles taken
/// before stay with the old ones.
void replace_parameters(const ModuleRef& model,
                        const std::function<Variable(const NamedParameter& found)>& make);
/// Replaces every buffer by what `make(found)` returns.
void replace_buffers(const ModuleRef& model,
                     const std::function<at::Tensor(const NamedBuffer& found)>& make);
/// Replaces every parameter and buffer by a copy on `device`, those of floating point in `dtype`;
/// frozen ones stay frozen, quantized ones as they are.
void move_to(const ModuleRef& model, at::Device device, at::ScalarType dtype);
/// Drops the gradients; frozen parameters have none.
void zero_grad(const ConstModuleRef& model);
/// Freezes every parameter whose path `pattern` matches (see matches() in autograd/parameter.h), or
/// with false lets it be trained again; how many. An error where there is none. Gradients and
/// optimizers pass over what is frozen.
int64_t freeze(const ConstModuleRef& model, std::string_view pattern, bool frozen = true);
/// Gives each layer that draws random numbers the stream of its path, so that what it draws does
/// not hang on which other layers ran. Without it such layers draw from one stream, in the order in
/// which they run.
void place(const ModuleRef& model);

/// Parameters and buffers by path.
using StateDict = std::map<std::string, at::Tensor>;
/// The tensors are the model's own: clone them to keep their values. An error where a parameter is
/// quantized, or two tensors have one path.
StateDict state_dict(const ConstModuleRef& model);
/// What load_state_dict met and could not place.
struct LoadedState {
  std::vector<std::string> missing, unexpected;  ///< paths, sorted
};
/// Copies the values of `state` into the model's tensors, cast to their dtype and device; what was
/// tied stays tied. A tied parameter may come under any of its paths, or under several with equal
/// values. One error names all that does not fit: shapes, kinds of dtype, and where `strict` what
/// is missing and what the model does not have; then nothing was written.
LoadedState load_state_dict(const ConstModuleRef& model, const StateDict& state,
                            bool strict = true);

/// A parameter in float32 on the CPU, zero until it is initialized; a shape alone under
/// MetaInit.
Variable new_parameter(at::IntArrayRef sizes);
/// A buffer filled with `value`, otherwise the same.
at::Tensor new_buffer(at::IntArrayRef sizes, double value, at::ScalarType dtype = at::kFloat);

/// Elements of all of them.
int64_t count(const std::vector<NamedParameter>& parameters);
/// Name, shape and number of elements of each, and the total.
std::string parameter_table(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
