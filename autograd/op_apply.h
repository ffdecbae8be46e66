// Implements apply(): the requirements on an op, the node that apply() records, and the checks
// around forward and backward. Read op.h first; you do not need this file to write an op.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/observer.h"
#include "autograd/op.h"
#include "core/error.h"
#include "core/named_range.h"

namespace lathe {
namespace detail {

/// Whether a Saved has saved a tensor on this thread since the flag was last cleared.
inline constinit thread_local bool saved_something = false;

template <class Op>
struct Registered {
  static constexpr bool is_elementwise = Op::info.elementwise || requires(Op& op) { op.chain(); };
  static inline const bool done = [] {
    if (is_elementwise) elementwise_ops().insert(Op::info.name);
    return op_registry().insert(Op::info.name).second;
  }();
};

/// Returns v as the op receives it under the thread's autocast: v itself, its working copy, or a
/// cast of v.
Variable autocast(Amp policy, const Variable& v);
/// During a recomputation, returns the next op as it was kept in its first run; empty if it was not
/// kept.
KeptOp kept_op(const char* name);
/// During a recomputation, returns whether this op, which has no input that needs a gradient now,
/// was recorded in its first run. This happens if its parameters have been frozen since then.
bool was_recorded(const char* name, std::span<const Variable> inputs);
/// During a recomputation, also marks in `needs` the inputs that needed a gradient in the first run
/// of the op.
void add_needs(const char* name, std::span<bool> needs);
/// During a recomputation, returns the node that was created in this op's first run, or null if
/// that node no longer exists.
std::shared_ptr<Node> replayed_node(const char* name, std::span<const Variable> inputs);
/// Passes the node to the Recomputation that records it (Mode::recording). A plain recording drops
/// the tensors that the op saved. A selective one decides in Recomputation::select() which tensors
/// to drop.
void record_node(const std::shared_ptr<Node>& node, std::span<const Variable> inputs,
                 std::span<const at::Tensor> outputs, const Flops& forward);
/// Packs the tensors that the op of the node keeps, with the thread's SavedPacker.
void pack_saved(Node& node, const OpInfo& info);
/// Throws an error which states that the op `name` of a recomputation returned other shapes or
/// dtypes than the op that created `node`.
[[noreturn]] void replay_mismatch(const char* name, const Node& node);
/// Restores the op of a node by recomputation.
void recompute_node(Node& node);

// The functions below contain code that is the same for all ops. In a template, it would be
// compiled once for each op.

/// Rethrows the current exception. An exception of ATen or an internal error gets the message
/// `name(float32[2,3], ...): message`; other exceptions are unchanged.
[[noreturn]] void rethrow(const char* name, std::span<const at::Tensor* const> inputs);
/// Rethrows the current exception of a backward. Only an exception of ATen gets a message with the
/// name of the op.
[[noreturn]] void rethrow_backward(const char* name);
/// Throws an error which states that the op's saved tensors were freed.
[[noreturn]] void saved_is_freed(const char* name);
/// Throws unless every input that the op needs is defined.
void check_defined(const OpInfo& info, std::span<const Variable* const> inputs);
/// Returns whether an op with these inputs is recorded, so that it gets a node.
bool needs_node(std::span<const Variable> inputs);
/// Connects a new node to the nodes of its inputs.
void link(Node& node, std::span<const Variable> inputs);

/// Throws ChainAbandoned if one of `inputs` belongs to the chain that fused() records. Called for
/// an op that a chain can't contain.
void abandon_chain_if_used(std::span<const Variable> inputs);

/// Records an op of a function that fused() runs, or an op that deferred() runs later, and returns
/// its result. `form` is the op's form in a chain, if it has one. Returns an undefined Variable if
/// the op must run now; the deferred ops have then run. Throws ChainAbandoned if the chain of
/// fused() contains an input of the op but can't contain the op. Must be called only while
/// mode().chain or mode().deferred is set.
Variable record_or_run(const std::optional<ChainForm>& form, const OpInfo& info,
                       std::span<const Variable> inputs);

/// Whether fused() and deferred() may record the op.
template <class Op>
concept Chainable = requires(const Op& op) { op.chain(); } ||
                    requires(const Op& op, const Variable& x) { op.row_chain(x); };

/// Returns the op's form in a chain, or nullopt if it has none. x is the op's first input.
template <class Op>
std::optional<ChainForm> chain_form(const Op& op, [[maybe_unused]] const Variable& x) {
  if constexpr (requires { op.chain(); })
    return op.chain();
  else
    return op.row_chain(x);
}

/// Makes running_node() return the node that stands for `node` in the graph (Node::in_graph), until
/// this object is destroyed.
class Running {
 public:
  explicit Running(Node* node) : outer_(std::exchange(running_node(), node->in_graph)) {}
  ~Running() { running_node() = outer_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Node* outer_;
};

constexpr size_t any_number = SIZE_MAX;  // stands for N inputs, where N is known only at run time

/// Requirements on an op of N inputs. Compiler errors name the requirement that an op does not
/// meet.
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
/// A type that converts only to T.
template <class T>
struct Only {
  operator T() const;
};
/// Returns whether one of an op's first twelve members can be initialized by a T.
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
/// An op that keeps a tensor outside of a Saved, where changes in place would go unnoticed.
template <class Op>
concept KeepsRawTensor =
    has_member<Op, at::Tensor>() || has_member<Op, std::vector<at::Tensor>>() ||
    has_member<Op, Variable>() || has_member<Op, std::vector<Variable>>();

/// Returns the result of forward. Never called: only its return type is used.
template <class Op, size_t... I>
auto forward_result(Op& op, const at::Tensor& x, std::index_sequence<I...>) {
  return op.forward(((void)I, x)...);
}

/// The node of an op with N inputs. It holds the op with its attributes and saved tensors. `saves`
/// is true if the op has saved a tensor.
template <class Op, size_t N, bool many_outputs>
struct OpNode final : Node {
  template <class T>
  using Dy = std::conditional_t<many_outputs, GradList<T>, T>;
  static constexpr const char* op_name = Op::info.name;

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
           ": this fused op has no second derivatives; build this part from plain ops");
    }
  }
  void release() override {
    if (!saves_) return;
    op_.reset();
    recomputed.reset();
  }
  void drop_saved() override { op_.reset(); }
  bool can_rebuild_result() const override {
    if constexpr (requires(const Op& op) { op.result(); }) return op_ && op_->has_result();
    return false;
  }
  void visit_saved(const SavedVisit& visit) override {
    if (op_) op_.emplace(visited_copy(visit));
  }
  /// Moves out the op, which a recomputation kept without the tensors of its inputs, and restores
  /// those tensors from `inputs`.
  Op take_kept(std::span<const Variable> inputs) {
    Op op = visited_copy([&](Saved& saved) { saved.reattach_input(inputs); });
    op_.reset();
    return op;
  }
  /// Restores the op from a recomputation with the same inputs.
  void restore_saved(Op op) {
    op_.emplace(std::move(op));
    recomputed.reset();
  }

 private:
  template <class T>
  GradList<T> run(const GradList<T>& dys, const NeedsList& list,
                  [[maybe_unused]] GradSlots* slots) {
    // Recompute again if the recomputed part contained a nested recomputation, which dropped the op
    // once more.
    for (std::shared_ptr<Recomputation> last; recomputed && recomputed != last;) {
      last = recomputed;
      recompute_node(*this);
    }

    if (!op_ || recomputed) [[unlikely]]
      saved_is_freed(Op::info.name);

    if (packed) [[unlikely]]
      return run_op(visited_copy([](Saved& saved) { saved.unpack(); }), dys, list, slots);
    return run_op(*op_, dys, list, slots);
  }

  /// Returns a copy of the op, after calling `visit` with each tensor that the copy keeps.
  Op visited_copy(const SavedVisit& visit) const {
    const VisitSaved visiting(visit);
    return Op(*op_);
  }

  template <class T>
  GradList<T> run_op(const Op& op, const GradList<T>& dys, const NeedsList& list,
                     [[maybe_unused]] GradSlots* slots) {
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
        if constexpr (requires(GradSlots& s) { op.backward(dy, needs, s); })
          return op.backward(dy, needs, *slots);
        else
          return op.backward(dy, needs);
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

/// Casts a node that a recomputation found for an op to that op's type of node. Throws if it is the
/// node of another op.
template <class Made>
Made& node_as(Node& node) {
  auto* made = dynamic_cast<Made*>(&node);
  if (made == nullptr) replay_mismatch(Made::op_name, node);
  return *made;
}

/// Returns the cost of an op with these inputs and this result.
template <class Op, class... In>
OpFlops flops_of(const Op& op, const at::Tensor& y, const In&... in) {
  if constexpr (requires { op.flops(in..., y); }) {
    return op.flops(in..., y);
  } else {
    static_assert(!requires { &Op::flops; }, "the op's flops must take its inputs and its result");
    return flops_each(y, Op::info.each.forward, Op::info.each.backward);
  }
}

/// Implements apply() for any number of inputs. `forward` calls the op's forward with these inputs,
/// and `count_flops` calls its flops().
template <size_t N, class Op, class Forward, class CountFlops>
auto apply_to(Op op, std::span<const Variable> inputs, std::span<const at::Tensor* const> data,
              Forward&& forward, CountFlops&& count_flops) {
  using Result = decltype(forward(op));
  constexpr bool many_outputs = !std::is_same_v<Result, at::Tensor>;

  const bool record =
      needs_node(inputs) || (mode().replaying != nullptr && was_recorded(Op::info.name, inputs));
  const NamedRange range([] { return Op::info.name; });
  using Made = OpNode<Op, N, many_outputs>;
  Result y;

  KeptOp kept;
  if (record && mode().replaying != nullptr) [[unlikely]]
    kept = kept_op(Op::info.name);

  // Every Saved that forward assigns sets this flag. The node of an op that saved nothing stays
  // usable after release(), so that several graphs can share it.
  saved_something = false;
  if (kept.node) [[unlikely]] {
    op = node_as<Made>(*kept.node).take_kept(inputs);
    if constexpr (many_outputs) {
      y = std::move(kept.outputs);
    } else {
      if (!kept.outputs.empty()) y = std::move(kept.outputs[0]);
      if constexpr (requires { op.result(); }) {
        if (!y.defined()) y = op.result();
      }
    }
  } else {
    try {
      y = forward(op);
    } catch (...) {
      rethrow(Op::info.name, data);
    }
  }
  const bool saves = saved_something;

  const auto outputs = [&]() -> std::span<const at::Tensor> {
    if constexpr (many_outputs)
      return y;
    else
      return {&y, 1};
  }();

  OpFlops flops;
  if ((mode().flops != nullptr || mode().recording != nullptr) && !outputs.empty()) {
    flops = count_flops(op, outputs[0]);
    if (mode().flops != nullptr) mode().flops->forward += flops.forward;
  }

  std::shared_ptr<Node> node;
  if (record) {
    // A recomputed op restores the node from its first run, because the remaining graph refers to
    // that node. If that node is gone, the op gets a new one.
    if (mode().replaying != nullptr) [[unlikely]]
      node = replayed_node(Op::info.name, inputs);
    if (node) {
      if (!node->fits(outputs)) replay_mismatch(Op::info.name, *node);
      node_as<Made>(*node).restore_saved(std::move(op));
    } else {
      node = std::make_shared<Made>(std::move(op), outputs, saves);
      link(*node, inputs);
      node->backward_flops = flops.backward;
      // flops() counts the gradients of all inputs; needed() counts only the needed gradients.
      if constexpr (requires { Op::needed(flops.backward, NeedsOf<N>{}); }) {
        NeedsOf<N> needs{};
        for (size_t i = 0; i < inputs.size(); ++i) needs[i] = inputs[i].requires_grad();
        node->backward_flops = Op::needed(flops.backward, needs);
      }
    }

    if (mode().recording != nullptr) [[unlikely]]
      record_node(node, inputs, outputs, flops.forward);
    else if (mode().packer != nullptr && mode().replaying == nullptr) [[unlikely]]
      pack_saved(*node, Op::info);
  }

  if (mode().observers != nullptr) [[unlikely]]
    ObserveOps::notify(
        &OpObserver::on_result,
        OpResult{.name = Op::info.name, .inputs = inputs, .outputs = outputs, .node = node.get()});

  if constexpr (many_outputs) {
    std::vector<Variable> out;
    for (uint32_t i = 0; i < y.size(); ++i) {
      const bool differentiable = node && y[i].is_floating_point();  // integer outputs are indices
      out.push_back(differentiable ? Variable(y[i], Edge(node, i)) : Variable(y[i]));
    }
    return out;
  } else {
    return node ? Variable(std::move(y), Edge(std::move(node))) : Variable(std::move(y));
  }
}

}  // namespace detail

/// Runs an op on its inputs: casts under autocast, turns ATen's errors into messages that name the
/// op, counts FLOPs, and records a node if a gradient may be requested. Returns a Variable, or a
/// vector of them if forward returns a vector of tensors. If forward returns a vector, backward
/// takes a GradList, whose members are undefined where no gradient arrived.
template <class Op, std::same_as<Variable>... V>
auto apply(Op op, const V&... given) {
  constexpr size_t N = sizeof...(V);
  static_assert(detail::HasInfo<Op>, "an op needs `static constexpr OpInfo info{.name = \"...\"}`");
  static_assert(std::copyable<Op>,
                "an op must be copyable: its node copies it to visit what it keeps");
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
                "its N inputs, or the same as a template on the type of dy");

  (void)detail::Registered<Op>::done;
  if (!(given.defined() && ...)) [[unlikely]]
    detail::check_defined(Op::info, std::array<const Variable*, N>{&given...});

  size_t next_input = 0;
  const std::array<Variable, N> inputs{detail::autocast(policy_of<Op>(next_input++), given)...};
  if (mode().chain != nullptr || mode().deferred != nullptr) [[unlikely]] {
    if constexpr (detail::Chainable<Op>) {
      const auto form = detail::chain_form(op, inputs[0]);
      if (Variable y = detail::record_or_run(form, Op::info, inputs); y.defined()) return y;
    } else {
      detail::record_or_run({}, Op::info, inputs);
    }
  }

  const at::AutoDispatchBelowAutograd plain;  // skips ATen's autograd but keeps version counters

  return [&]<size_t... I>(std::index_sequence<I...>) {
    const std::array<const at::Tensor*, N> data{&inputs[I].data()...};
    // An op with a member `needs` knows in forward which inputs need a gradient, so that it can
    // skip work and save less.
    if constexpr (requires { op.needs = Needs<N>{}; }) {
      op.needs = {mode().grad && inputs[I].requires_grad()...};
      if (mode().replaying != nullptr) [[unlikely]]
        detail::add_needs(Op::info.name, op.needs);
    }
    return detail::apply_to<N>(
        std::move(op), inputs, data, [&](Op& o) { return o.forward(*data[I]...); },
        [&](const Op& o, const at::Tensor& y) { return detail::flops_of(o, y, *data[I]...); });
  }(std::make_index_sequence<N>());
}

/// Runs an op with any number of inputs: it has forward(at::TensorList), and backward(dy, const
/// NeedsList&) returns a GradList<T>.
template <class Op>
auto apply(Op op, const std::vector<Variable>& given) {
  static_assert(detail::HasInfo<Op>, "an op needs `static constexpr OpInfo info{.name = \"...\"}`");
  static_assert(std::copyable<Op>,
                "an op must be copyable: its node copies it to visit what it keeps");
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

  // forward() below reads the values of its inputs, so none of them may be a placeholder of a chain
  // or a deferred result.
  if (mode().chain != nullptr) [[unlikely]]
    detail::abandon_chain_if_used(inputs);
  if (detail::has_deferred_ops) [[unlikely]]
    detail::compute_deferred();

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
