// Declares ModuleCall, which represents a call of a module while the call is in progress. It checks
// the shapes of the call's inputs and result by named dims, finds the module's path in the model,
// and runs forward hooks on the result.
//
//   Variable MyLayer::operator()(const Variable& x, const Variable& memory) const {
//     ModuleCall call(*this, {{'C', weight.size(1)}});
//     call.input(x, "B T C");
//     call.input("memory", memory, "B S C");
//     ...
//     return call.result(y, "B T C");
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <typeindex>

#include "autograd/variable.h"
#include "core/mode.h"
#include "core/named_range.h"
#include "nn/module.h"

namespace lathe {

/// The size of a dim that a module knows in advance.
struct Bound {
  char name;
  int64_t size;
};

/// Returns the type names of the modules of namespace lathe that make a ModuleCall. A test checks
/// that a table in the tests has a row for each type.
std::set<std::string>& module_registry();

namespace detail {
/// Returns a type's name without namespaces, such as "Linear".
std::string type_text(const std::type_info& type);
bool register_module(const std::type_info& type);
template <class M>
struct RegisteredModule {
  static inline const bool done = register_module(typeid(M));
};
}  // namespace detail

/// One call of a module. A module creates a ModuleCall as a local variable of its operator(). The
/// calls that are in progress on a thread form a chain, from the innermost to the outermost.
class ModuleCall {
 public:
  template <class M>
  explicit ModuleCall(const M& module, std::initializer_list<Bound> bound = {})
      : module_(&module),
        type_(typeid(M)),
        walk_(walk_into<M>),
        outer_(innermost()),
        range_([this] { return text(); }) {
    (void)detail::RegisteredModule<M>::done;
    for (const Bound& b : bound) dims_.push_back({.name = b.name, .size = b.size, .tensor = -1});
    innermost() = this;
  }
  ~ModuleCall() { innermost() = outer_; }
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  /// Checks a tensor against a named shape such as "B T C", or "... C" for any number of dims
  /// before C. Each letter has one size in all tensors of the call: the size that the constructor
  /// got, or the size in the first tensor with the letter. An undefined tensor is skipped. The
  /// error names the module by path and type, the tensor, both shapes, and the dim.
  void input(const char* name, const at::Tensor& x, std::string_view spec) {
    check(name, x, spec, false);
  }
  /// Checks a Variable in the same way.
  void input(const char* name, const Variable& x, std::string_view spec) {
    check(name, x.data(), spec, false);
  }
  /// Checks a module's first or only input, which must not be undefined.
  void input(const at::Tensor& x, std::string_view spec) { check("input", x, spec, false, true); }
  /// Checks a module's first or only input, which must not be undefined.
  void input(const Variable& x, std::string_view spec) {
    check("input", x.data(), spec, false, true);
  }
  /// Checks the module's result. Returns the result, or the value by which forward hooks replace it
  /// (nn/hooks.h).
  Variable result(Variable y, std::string_view spec) {
    check("result", y.data(), spec, true);
    return mode().forward_hooks == nullptr ? y : run_hooks(std::move(y));
  }
  /// Returns the size of a dim that is bound. Throws if no dim of that name is bound.
  int64_t size(char dim) const;

  /// Returns the thread's innermost call, or null if no call is in progress.
  static ModuleCall*& innermost() {
    static thread_local ModuleCall* call = nullptr;
    return call;
  }
  const ModuleCall* outer() const { return outer_; }
  const void* module() const { return module_; }
  std::type_index type() const { return type_; }
  /// Returns the path as seen from the outermost module in progress, such as "blocks.1.attn"; ""
  /// for the outermost module itself.
  std::string path() const;
  /// Returns "blocks.1.attn (CausalSelfAttention)", or only the type if the path is empty.
  std::string text() const;

 private:
  struct Dim {
    char name;
    int64_t size;
    int tensor;  ///< index in seen_ of the tensor that bound the dim; -1: the constructor
  };
  struct Seen {
    const char* name;
    at::Tensor tensor;
  };

  template <class M>
  static void walk_into(const void* module, Visit& v) {
    if constexpr (requires(M& m) { m.visit(v); }) {
      const_cast<M*>(static_cast<const M*>(module))->visit(v);
    } else {
      (void)module, (void)v;
    }
  }
  void check(const char* name, const at::Tensor& x, std::string_view spec, bool is_result,
             bool is_required = false);
  [[noreturn]] void fail_mismatch(const char* name, const at::Tensor& x, std::string_view spec,
                                  bool is_result, const std::string& why) const;
  Variable run_hooks(Variable y) const;

  const void* module_;
  std::type_index type_;
  void (*walk_)(const void*, Visit&);
  ModuleCall* outer_;
  c10::SmallVector<Dim, 8> dims_;
  c10::SmallVector<Seen, 4> seen_;
  NamedRange range_;
};

}  // namespace lathe
