// How an op is written. An op is one struct, which is also its node's payload: its facts (OpInfo),
// attributes, saved tensors, forward, and backward right under it. apply() runs it. Adding one
// touches three places: the struct and its function in ops/<family>.cc, a declaration in ops.h, a
// row in tests/autograd/ops/op_table.cc. Backward formulas are written in the ops of ops.h by their
// plain names, which mean the same for tensors: see ops/formula.h.
//
// An op with any number of inputs takes an `at::TensorList`. An op with several outputs returns
// a vector of tensors; its backward takes a list of gradients, which are undefined if none
// arrived.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/variable.h"
#include "core/error.h"
#include "core/mode.h"
#include "core/named_range.h"

namespace lathe {

/// What autocast does to an op's floating-point inputs (float64 is never touched).
enum class Amp {
  low,      ///< cast to the compute dtype: matmuls
  fp32,     ///< cast to float32: norms, softmax, losses, reductions
  promote,  ///< left alone; ATen promotes mixed inputs to the wider one
};

/// Floating-point operations for each element of an op's result that are no matmul's.
struct PerElement {
  double forward = 1, backward = 1;
};

/// A set of an op's inputs, as bits.
constexpr uint32_t inputs_at(std::initializer_list<uint32_t> places) {
  uint32_t bits = 0;
  for (const uint32_t i : places) bits |= 1u << i;
  return bits;
}

/// What an op says of itself, as its static member `info`.
struct OpInfo {
  const char* name;
  Amp amp = Amp::promote;
  PerElement each = {};   ///< the op's cost, unless it has flops() of its own
  uint32_t optional = 0;  ///< inputs that may be undefined: inputs_at({...})
};

/// What an op made, for who watches (Mode::observe_result).
struct OpResult {
  const char* name;
  std::span<const Variable> inputs;  ///< as the op got them, after autocast
  std::span<const at::Tensor> outputs;
  const Node* node;  ///< null where nothing is recorded
};

/// What autocast does to input i of an op: its `policies[i]`, where it has them, else its info.amp.
template <class Op>
constexpr Amp policy_of(size_t i) {
  if constexpr (requires { Op::policies; }) {
    return Op::policies[i];
  } else {
    (void)i;
    return Op::info.amp;
  }
}

/// Gradients of an op's N inputs.
template <size_t N, class T = at::Tensor>
using Grads = std::array<T, N>;

/// Which of an op's N inputs need a gradient.
template <size_t N>
using Needs = std::array<bool, N>;

/// A tensor that an op keeps for backward: saved by forward, or an attribute such as an index or a
/// mask. Reading it fails if the tensor was changed in place since, or is already freed. For second
/// derivatives it states what the tensor is to the op: input i, output i, or (the default) an
/// intermediate, through which nothing is differentiated.
class Saved {
 public:
  Saved() = default;
  /// Keeps an attribute of the op, which the op is made with.
  Saved(at::Tensor attribute);
  /// A slot for input or output i of the op, through which second derivatives go.
  static Saved input(int i) { return Saved(Place::input, i); }
  /// The same of output i.
  static Saved output(int i = 0) { return Saved(Place::output, i); }

  const at::Tensor& operator=(const at::Tensor& t);
  /// at::Tensor: the tensor. Variable: the tensor at its place in the graph.
  template <class T = at::Tensor>
  T as() const;
  /// The tensor, checked as as() does.
  const at::Tensor& data() const;
  bool defined() const { return tensor_.defined(); }

 private:
  enum class Place : uint8_t { inside, input, output };
  Saved(Place place, int index) : place_(place), index_(index) {}

  at::Tensor tensor_;
  int64_t version_ = 0;
  Place place_ = Place::inside;
  int index_ = 0;
};

/// A tensor as a T that nothing is differentiated through.
template <class T>
T constant(const at::Tensor& t) {
  return T(t);
}

/// Drops this thread's casts of weights; see Mode::cache_casts.
void clear_cast_cache();

/// Names of the ops in this process, for the test that every one has a row in the op table.
std::set<std::string>& op_registry();

/// The node whose backward runs on this thread, or null.
Node*& running_node();

/// FLOPs of an op that does `forward` and `backward` operations for each element of `t`.
inline OpFlops flops_each(const at::Tensor& t, double forward, double backward) {
  const auto n = static_cast<double>(t.numel());
  return {.forward = {.other = forward * n}, .backward = {.other = backward * n}};
}

namespace detail {

/// Whether a Saved of this thread took a tensor since it was last set to false.
bool& saved_something();

template <class Op>
struct Registered {
  static inline const bool done = op_registry().insert(Op::info.name).second;
};

/// v as the op gets it under the thread's autocast: itself, its working copy, or a cast.
Variable autocast(Amp policy, const Variable& v);
/// Where a Recomputation runs again: the node that was made when this op ran first; null where that
/// is gone.
std::shared_ptr<Node> replayed_node(const char* name, std::span<const Variable> inputs);
/// Where a Recomputation records: the node keeps nothing, and is brought back by it.
void record_node(const std::shared_ptr<Node>& node, std::span<const Variable> inputs);
/// An error: the op that ran again is not the node's.
[[noreturn]] void replay_mismatch(const char* name, const Node& node);
/// Brings back what the node forgot.
void recompute_node(Node& node);

// What is the same for all ops is in functions: in a template each op has its own, which takes time
// to compile.

/// Rethrows the exception in flight: ATen's and internal ones as `name(float32[2,3], ...):
/// message`, others as they are.
[[noreturn]] void rethrow(const char* name, std::span<const at::Tensor* const> inputs);
/// The same in backward, for ATen's alone.
[[noreturn]] void rethrow_backward(const char* name);
/// An error: what the op's node saved is freed.
[[noreturn]] void saved_is_freed(const char* name);
/// Throws unless every input is defined that the op needs.
void check_defined(const OpInfo& info, std::span<const Variable* const> inputs);
/// Whether an op of these inputs gets a node.
bool recorded(std::span<const Variable> inputs);
/// Points a new node to those of its inputs.
void link(Node& node, std::span<const Variable> inputs);

/// Sets running_node() for its lifetime.
class Running {
 public:
  explicit Running(Node* node) : outer_(std::exchange(running_node(), node)) {}
  ~Running() { running_node() = outer_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Node* outer_;
};

constexpr size_t any_number = SIZE_MAX;  // of inputs: known at run time

/// What an op of N inputs looks like. These name what is missing in an op that does not compile.
template <class Op>
concept HasInfo = requires {
  { Op::info } -> std::convertible_to<const OpInfo&>;
};
template <class Op, size_t N>
constexpr bool has_forward() {
  if constexpr (N == any_number) {
    return requires(Op& op, at::TensorList x) { op.forward(x); };
  } else {
    return []<size_t... I>(std::index_sequence<I...>) {
      return requires(Op& op, const at::Tensor& x) { op.forward(((void)I, x)...); };
    }(std::make_index_sequence<N>());
  }
}
template <size_t N>
using NeedsOf = std::conditional_t<N == any_number, NeedsList, Needs<N == any_number ? 0 : N>>;
template <class Op, size_t N, class DY>
constexpr bool has_backward() {
  return requires(const Op& op, const DY& dy, const NeedsOf<N>& needs) {
    op.backward(dy, needs);
  } || requires(const Op& op, const DY& dy, const NeedsOf<N>& needs, GradSlots& slots) {
    op.backward(dy, needs, slots);
  };
}
/// Converts to T alone.
template <class T>
struct Only {
  operator T() const;
};
/// Whether one of an op's first twelve members is initialized by a T.
template <class Op, class T>
constexpr bool has_member() {
  using O = Only<T>;
  return requires { Op{O()}; } || requires { Op{{}, O()}; } || requires { Op{{}, {}, O()}; } ||
         requires { Op{{}, {}, {}, O()}; } || requires { Op{{}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, O()}; } ||
         requires { Op{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, O()}; };
}
/// Whether an op keeps a tensor whose changes nobody would notice.
template <class Op>
concept KeepsRawTensor =
    has_member<Op, at::Tensor>() || has_member<Op, std::vector<at::Tensor>>() ||
    has_member<Op, Variable>() || has_member<Op, std::vector<Variable>>();

/// What forward returns.
template <class Op, size_t... I>
auto forward_result(Op& op, const at::Tensor& x, std::index_sequence<I...>) {
  return op.forward(((void)I, x)...);
}

template <class Op, size_t N, bool many_outputs>
struct OpNode final : Node {
  template <class T>
  using Dy = std::conditional_t<many_outputs, GradList<T>, T>;

  OpNode(Op op, std::span<const at::Tensor> outputs_, bool saves)
      : Node(outputs_), op_(std::move(op)), saves_(saves) {}

  std::string name() const override { return Op::info.name; }
  GradList<at::Tensor> backward(const GradList<at::Tensor>& dy, const NeedsList& needs,
                                GradSlots& slots) override {
    return run(dy, needs, &slots);
  }
  GradList<Variable> backward(const GradList<Variable>& dy, const NeedsList& needs) override {
    if constexpr (has_backward<Op, N, Dy<Variable>>()) {
      return run(dy, needs, nullptr);
    } else {
      fail(Exit::internal, Op::info.name,
           ": a fused op without second derivatives; build this part from plain ops");
    }
  }
  void release() override {
    if (!saves_) return;
    op_.reset();
    recomputed.reset();
  }
  void forget() override { op_.reset(); }
  /// The op of the same inputs, run again.
  void bring_back(Op op) {
    op_.emplace(std::move(op));
    recomputed.reset();
  }

 private:
  template <class T>
  GradList<T> run(const GradList<T>& dys, const NeedsList& list,
                  [[maybe_unused]] GradSlots* slots) {
    // Once more where the part that ran again had a recomputed part of its own, which dropped the
    // op again.
    for (std::shared_ptr<Recomputation> last; !op_ && recomputed && recomputed != last;) {
      last = recomputed;
      recompute_node(*this);
    }
    if (!op_) [[unlikely]]
      saved_is_freed(Op::info.name);
    const Running running(this);
    const auto& dy = [&]() -> const Dy<T>& {
      if constexpr (many_outputs)
        return dys;
      else
        return dys[0];
    }();
    NeedsOf<N> needs{};
    if constexpr (N == any_number) {
      needs = list;
    } else {
      std::copy(list.begin(), list.end(), needs.begin());
    }
    try {
      const auto grads = [&] {
        if constexpr (requires(GradSlots& s) { op_->backward(dy, needs, s); })
          return op_->backward(dy, needs, *slots);
        else
          return op_->backward(dy, needs);
      }();
      return GradList<T>(std::make_move_iterator(grads.begin()),
                         std::make_move_iterator(grads.end()));
    } catch (...) {
      rethrow_backward(Op::info.name);
    }
  }

  std::optional<Op> op_;
  bool saves_;
};

/// What an op of these inputs and this result costs.
template <class Op, class... In>
OpFlops flops_of(const Op& op, const at::Tensor& y, const In&... in) {
  if constexpr (requires { op.flops(in..., y); }) {
    return op.flops(in..., y);
  } else {
    static_assert(!requires { &Op::flops; }, "the op's flops must take its inputs and its result");
    return flops_each(y, Op::info.each.forward, Op::info.each.backward);
  }
}

/// apply() for any number of inputs; `forward` calls the op's with them, `flops` counts.
template <size_t N, class Op, class Forward, class CountFlops>
auto apply_to(Op op, std::span<const Variable> inputs, std::span<const at::Tensor* const> data,
              Forward&& forward, CountFlops&& count_flops) {
  using Result = decltype(forward(op));
  constexpr bool many_outputs = !std::is_same_v<Result, at::Tensor>;
  const bool record = recorded(inputs);
  const NamedRange range([] { return Op::info.name; });
  Result y;
  saved_something() = false;
  try {
    y = forward(op);
  } catch (...) {
    rethrow(Op::info.name, data);
  }
  const bool saves = saved_something();
  const auto outputs = [&]() -> std::span<const at::Tensor> {
    if constexpr (many_outputs)
      return y;
    else
      return {&y, 1};
  }();
  OpFlops flops;
  if (mode().flops != nullptr && !outputs.empty()) {
    flops = count_flops(op, outputs[0]);
    mode().flops->forward += flops.forward;
  }
  std::shared_ptr<Node> node;
  if (record) {
    using Made = OpNode<Op, N, many_outputs>;
    if (mode().replaying != nullptr) [[unlikely]]
      node = replayed_node(Op::info.name, inputs);
    if (node) {
      auto* made = dynamic_cast<Made*>(node.get());
      if (made == nullptr || !made->fits(outputs)) replay_mismatch(Op::info.name, *node);
      made->bring_back(std::move(op));
    } else {
      node = std::make_shared<Made>(std::move(op), outputs, saves);
      link(*node, inputs);
      node->backward_flops = flops.backward;
      if constexpr (requires { Op::needed(flops.backward, NeedsOf<N>{}); }) {
        NeedsOf<N> needs{};
        for (size_t i = 0; i < inputs.size(); ++i) needs[i] = inputs[i].requires_grad();
        node->backward_flops = Op::needed(flops.backward, needs);
      }
    }
    if (mode().recording != nullptr) [[unlikely]]
      record_node(node, inputs);
  }
  if (mode().observe_result != nullptr) [[unlikely]]
    (*mode().observe_result)({Op::info.name, inputs, outputs, node.get()});
  if constexpr (many_outputs) {
    std::vector<Variable> out;
    for (uint32_t i = 0; i < y.size(); ++i) {
      const bool differentiable = node && y[i].is_floating_point();  // not indices
      out.push_back(differentiable ? Variable(y[i], Edge(node, i)) : Variable(y[i]));
    }
    return out;
  } else {
    return node ? Variable(std::move(y), Edge(std::move(node))) : Variable(std::move(y));
  }
}

}  // namespace detail

/// Runs an op on its inputs: casts under autocast, turns ATen's errors into sentences that name the
/// op, counts FLOPs, and records a node when a gradient may be asked for. A Variable, or a vector
/// of them where forward gives a vector of tensors; then backward takes a GradList, whose members
/// are undefined where no gradient came.
template <class Op, std::same_as<Variable>... V>
auto apply(Op op, const V&... given) {
  constexpr size_t N = sizeof...(V);
  static_assert(detail::HasInfo<Op>, "an op needs `static constexpr OpInfo info{.name = \"...\"}`");
  static_assert(!detail::KeepsRawTensor<Op>,
                "an op must keep its tensors as `Saved`, which notices when they are changed "
                "before backward");
  static_assert(
      detail::has_forward<Op, N>(),
      "an op's forward must take a `const at::Tensor&` for each input that apply() is given");
  using Y = decltype(detail::forward_result(op, std::declval<const at::Tensor&>(),
                                            std::make_index_sequence<N>()));
  static_assert(std::is_same_v<Y, at::Tensor> || std::is_same_v<Y, std::vector<at::Tensor>>,
                "an op's forward must return an at::Tensor or a std::vector<at::Tensor>");
  using Dy = std::conditional_t<std::is_same_v<Y, at::Tensor>, at::Tensor, GradList<at::Tensor>>;
  static_assert(detail::has_backward<Op, N, Dy>(),
                "an op needs `Grads<N> backward(const at::Tensor& dy, Needs<N> needs) const` for "
                "its N inputs, or the "
                "same as a template on the type of dy");
  (void)detail::Registered<Op>::done;
  if (!(given.defined() && ...)) [[unlikely]]
    detail::check_defined(Op::info, std::array<const Variable*, N>{&given...});
  size_t next_input = 0;
  const std::array<Variable, N> inputs{detail::autocast(policy_of<Op>(next_input++), given)...};
  const at::AutoDispatchBelowAutograd
      plain;  // ATen's own autograd is not used; version counters stay alive
  return [&]<size_t... I>(std::index_sequence<I...>) {
    const std::array<const at::Tensor*, N> data{&inputs[I].data()...};
    if constexpr (requires { op.needs = Needs<N>{}; })
      op.needs = {mode().grad && inputs[I].requires_grad()...};
    return detail::apply_to<N>(
        std::move(op), inputs, data, [&](Op& o) { return o.forward(*data[I]...); },
        [&](const Op& o, const at::Tensor& y) { return detail::flops_of(o, y, *data[I]...); });
  }(std::make_index_sequence<N>());
}

/// The same for an op of any number of inputs: forward(at::TensorList), and a GradList<T> from
/// backward(dy, const NeedsList&).
template <class Op>
auto apply(Op op, const std::vector<Variable>& given) {
  static_assert(detail::HasInfo<Op>, "an op needs `static constexpr OpInfo info{.name = \"...\"}`");
  static_assert(!detail::KeepsRawTensor<Op>,
                "an op must keep its tensors as `Saved`, which notices when they are changed "
                "before backward");
  static_assert(detail::has_forward<Op, detail::any_number>(),
                "the op's forward must take an at::TensorList");
  (void)detail::Registered<Op>::done;
  std::vector<Variable> inputs;
  for (const Variable& v : given) {
    detail::check_defined(Op::info, std::array{&v});
    inputs.push_back(detail::autocast(Op::info.amp, v));
  }
  const at::AutoDispatchBelowAutograd plain;
  std::vector<at::Tensor> tensors;
  std::vector<const at::Tensor*> data;
  for (const Variable& v : inputs) tensors.push_back(v.data());
  for (const at::Tensor& t : tensors) data.push_back(&t);
  return detail::apply_to<detail::any_number>(
      std::move(op), inputs, data, [&](Op& o) { return o.forward(tensors); },
      [&](const Op& o, const at::Tensor& y) {
        return detail::flops_of(o, y, at::TensorList(tensors));
      });
}

}  // namespace lathe
