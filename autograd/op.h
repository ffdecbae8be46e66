// Defines how an op is written. An op is one struct with its properties (OpInfo), attributes, saved
// tensors, forward, and, right below forward, backward. The struct must be copyable. It is also
// stored in the node, and apply() runs it. A new op needs three things: the struct and its function
// in ops/<family>.cc, a declaration in ops.h or a header of ops/, and a row in a table
// tests/autograd/ops/op_table_*.cc. Backward formulas call the ops of ops.h by their plain names.
// Functions with these names also exist for tensors (ops/formula.h).
//
// Some ops can compute their result cheaply from tensors that they save besides their inputs. Such
// an op may define `at::Tensor result() const`, which computes its result from them, and `bool
// has_result() const`, which returns whether result() gives the same bits as forward. Selective
// recomputation then keeps only these tensors and not the result (recompute.h).
//
// An op with any number of inputs takes an `at::TensorList`. An op with several outputs returns a
// vector of tensors. Its backward takes a list with the gradient of each output, which is undefined
// if no gradient reached the output.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/observer.h"
#include "autograd/variable.h"
#include "core/error.h"
#include "core/kernels/chain.h"
#include "core/mode.h"
#include "core/named_range.h"

namespace lathe {

class PackedTensor;

/// What autocast does to an op's floating-point inputs (float64 is never touched).
enum class Amp {
  low,      ///< cast to the compute dtype: matmuls
  fp32,     ///< cast to float32: norms, softmax, losses, reductions
  promote,  ///< not cast; ATen promotes mixed inputs to the wider dtype
};

/// Floating-point operations per element of an op's result, without matrix products.
struct PerElement {
  double forward = 1, backward = 1;
};

/// Returns a set of an op's inputs as a bit mask: bit i stands for input i.
constexpr uint32_t inputs_at(std::initializer_list<uint32_t> places) {
  uint32_t bits = 0;
  for (const uint32_t i : places) bits |= 1u << i;
  return bits;
}

/// The properties of an op. Each op has them as its static member `info`.
struct OpInfo {
  const char* name;
  Amp amp = Amp::promote;
  PerElement each = {};   ///< the cost of an op that does not define flops()
  uint32_t optional = 0;  ///< inputs that may be undefined: inputs_at({...})
  /// True if memory.saved must leave the tensors that the op saves unrounded: backward divides by
  /// them, compares them or takes exponentials of them, or the tensors are gradients.
  bool exact = false;
  /// Whether each element of the result depends on only one element of each input (in swiglu, on
  /// one element of each half of the input). An op with a member chain() (see ChainForm) need not
  /// set it.
  bool elementwise = false;
};

/// Returns what autocast does to input i of an op: `policies[i]` if the op has that member, else
/// info.amp.
template <class Op>
constexpr Amp policy_of(size_t i) {
  if constexpr (requires { Op::policies; }) {
    return Op::policies[i];
  } else {
    (void)i;
    return Op::info.amp;
  }
}

/// The form of an op in a chain. fused() and deferred() can record an elementwise op if it has a
/// member `chain()` that returns its form, and an op on rows if it has a member `row_chain(x)` that
/// returns the form for its input x.
struct ChainForm {
  ChainOp op = ChainOp::copy;
  double number = 0;                      ///< the op's scalar operand, if it has one
  at::Tensor mask{};                      ///< the op's mask; undefined if it has none
  std::optional<at::ScalarType> dtype{};  ///< dtype of the result; nullopt: as ATen promotes
};

/// Gradients of an op's N inputs.
template <size_t N, class T = at::Tensor>
using Grads = std::array<T, N>;

/// For each of an op's N inputs, whether it needs a gradient.
template <size_t N>
using Needs = std::array<bool, N>;

/// A tensor that an op keeps for backward: saved by forward, or an attribute such as an index or a
/// mask. Reading it throws if the tensor was changed in place after it was saved. For second
/// derivatives, a Saved also records the role of the tensor: input i, output i, or (the default) an
/// intermediate, through which no gradient flows.
class Saved {
 public:
  /// The role of the tensor. An `activation` is an intermediate that is as large as the result and
  /// may be rounded by memory.saved; `inside` is for statistics and attributes, which must not be
  /// rounded.
  enum class Place : uint8_t { inside, activation, input, output };

  Saved() = default;
  /// Keeps an attribute that the op is constructed with.
  Saved(at::Tensor attribute);
  /// Copies `other`, and passes the copy to the thread's VisitSaved if there is one.
  Saved(const Saved& other);
  Saved(Saved&&) noexcept = default;
  Saved& operator=(const Saved&) = default;
  Saved& operator=(Saved&&) noexcept = default;
  /// Returns a slot for input i of the op, through which second derivatives flow.
  static Saved input(int i) { return Saved(Place::input, i); }
  /// Returns a slot for output i.
  static Saved output(int i = 0) { return Saved(Place::output, i); }
  /// Returns a slot for an intermediate of the size of the result.
  static Saved activation() { return Saved(Place::activation, 0); }

  /// Saves `t` for backward and returns it.
  const at::Tensor& operator=(const at::Tensor& t);
  /// Returns the tensor. If T is Variable, the result is connected to the tensor's position in the
  /// graph.
  template <class T = at::Tensor>
  T as() const;
  /// Returns the tensor, with the checks of as().
  const at::Tensor& data() const;
  bool defined() const { return tensor_.defined(); }
  Place place() const { return place_; }
  /// Returns the index of the input or output.
  int index() const { return index_; }

  /// Returns the tensor without the checks of data().
  const at::Tensor& kept() const { return tensor_; }
  /// If this slot holds the unchanged input index() of the op, removes the tensor from the slot and
  /// returns it. reattach_input() can then restore it. Otherwise returns an undefined tensor.
  at::Tensor detach_input(std::span<const Variable> inputs);
  /// Restores the tensor that detach_input() removed, from the op's inputs in a later run.
  void reattach_input(std::span<const Variable> inputs);
  /// Replaces the tensor by a packed one; unpack() does the reverse.
  void pack(std::shared_ptr<const PackedTensor> packed);
  void unpack();
  const PackedTensor* packed() const { return packed_.get(); }

 private:
  Saved(Place place, int index) : place_(place), index_(index) {}

  at::Tensor tensor_;
  std::shared_ptr<const PackedTensor> packed_;
  int64_t version_ = 0;
  Place place_ = Place::inside;
  bool given_ = false;  // whether the tensor is an input that reattach_input() restores
  int index_ = 0;
};

/// While this object exists, calls a function with each Saved that is copied on this thread. C++
/// cannot list the members of an op, but a copy of the op copies every Saved in it, even in arrays
/// and vectors.
class VisitSaved {
 public:
  explicit VisitSaved(const SavedVisit& visit);
  ~VisitSaved();
  VisitSaved(const VisitSaved&) = delete;
  VisitSaved& operator=(const VisitSaved&) = delete;

 private:
  const SavedVisit* outer_;
};

/// Returns a tensor as a T through which no gradient flows.
template <class T>
T constant(const at::Tensor& t) {
  return T(t);
}

/// Throws an error that names the function `name` unless all of its inputs hold a tensor. Functions
/// call require_defined() if they read the shape or dtype of an input before an op checks that
/// input.
void require_defined(const char* name, std::initializer_list<const Variable*> inputs);

/// Drops this thread's cached casts of weights; see Mode::cache_casts.
void clear_cast_cache();
/// Drops the cached casts of one weight.
void drop_cached_casts(const Leaf& weight);

/// Returns the names of the ops in this process, for the test that each op has a row in the op
/// table.
std::set<std::string>& op_registry();
/// Returns the names of the elementwise ops in this process.
std::set<std::string>& elementwise_ops();

/// Returns the node whose backward runs on this thread, or null if none runs.
Node*& running_node();

/// Returns the FLOPs of an op that does `forward` and `backward` operations for each element of
/// `t`.
inline OpFlops flops_each(const at::Tensor& t, double forward, double backward) {
  const auto n = static_cast<double>(t.numel());
  return {.forward = {.other = forward * n}, .backward = {.other = backward * n}};
}

}  // namespace lathe

// Defines apply(), which is a template.
#include "autograd/op_apply.h"
