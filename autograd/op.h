// How an op is written. An op is one struct, which is also its node's payload: its facts (OpInfo), attributes, saved
// tensors, forward, backward right under it, and FLOPs. apply() runs it. Adding one touches three places: the struct
// and its function in ops/<family>.cc, a declaration in ops.h, a row in tests/op_table.cc.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "autograd/node.h"
#include "autograd/variable.h"
#include "core/error.h"
#include "core/mode.h"

namespace lathe {

/// What autocast does to an op's floating-point inputs (float64 is never touched).
enum class Amp {
  low,      ///< cast to the compute dtype: matmuls
  fp32,     ///< cast to float32: norms, softmax, losses, reductions
  promote,  ///< left alone; ATen promotes mixed inputs to the wider one
};

struct OpInfo {
  const char* name;
  Amp amp = Amp::promote;
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

/// A tensor saved by forward for backward. An error if it was changed in place between the two, or is already freed.
class Saved {
 public:
  const at::Tensor& operator=(const at::Tensor& t);
  /// at::Tensor: the tensor. Variable: the tensor at its place in the graph (an input, the output, or a constant).
  template <class T = at::Tensor>
  T as() const;
  const at::Tensor& data() const;
  bool defined() const { return tensor_.defined(); }

 private:
  at::Tensor tensor_;
  uint32_t version_ = 0;
  int input_ = -1;  // which of the op's inputs it is, if one
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

namespace detail {

/// The inputs of the op whose forward runs on this thread; Saved looks itself up here.
struct SavingScope {
  explicit SavingScope(std::span<const at::Tensor* const> inputs);
  ~SavingScope();
  std::span<const at::Tensor* const> inputs;
  SavingScope* outer;
};

template <class Op>
struct Registered {
  static inline const bool done = op_registry().insert(Op::info.name).second;
};

/// v as the op gets it under the thread's autocast: itself, its working copy, or a cast.
Variable autocast(Amp policy, const Variable& v);
/// Rethrows the exception in flight as `name(float32[2,3], ...): message`.
[[noreturn]] void rethrow(const char* name, std::span<const at::Tensor* const> inputs);

template <class Op, size_t N>
struct OpNode final : Node {
  OpNode(Op op, const at::Tensor& out) : Node(out), op_(std::move(op)) {}

  std::string name() const override { return Op::info.name; }
  GradList<at::Tensor> backward(const at::Tensor& dy) override { return run<at::Tensor>(dy); }
  GradList<Variable> backward(const Variable& dy) override {
    if constexpr (requires(const Op& op) { op.backward(dy, Needs<N>{}); }) {
      return run<Variable>(dy);
    } else {
      fail(Exit::internal, Op::info.name, ": a fused op without second derivatives; build this part from plain ops");
    }
  }
  void release() override { op_.reset(); }

 private:
  template <class T>
  GradList<T> run(const T& dy) {
    LATHE_CHECK(op_.has_value(), Op::info.name,
                ": what it saved is freed; a second backward needs retain=true in the first");
    Needs<N> needs{};
    for (size_t i = 0; i < N; ++i) needs[i] = next[i] != nullptr;
    try {
      Grads<N, T> grads = op_->backward(dy, needs);
      return GradList<T>(std::make_move_iterator(grads.begin()), std::make_move_iterator(grads.end()));
    } catch (const c10::Error&) {
      rethrow((std::string(Op::info.name) + " backward").c_str(), {});
    }
  }

  std::optional<Op> op_;
};

}  // namespace detail

/// Runs an op on its inputs: casts under autocast, turns ATen's errors into sentences that name the op, counts FLOPs,
/// and records a node when a gradient may be asked for.
template <class Op, std::same_as<Variable>... V>
Variable apply(Op op, const V&... given) {
  constexpr size_t N = sizeof...(V);
  (void)detail::Registered<Op>::done;
  size_t next_input = 0;
  const std::array<Variable, N> inputs{detail::autocast(policy_of<Op>(next_input++), given)...};
  const at::AutoDispatchBelowAutograd plain;  // ATen's own autograd is not used; version counters stay alive
  return [&]<size_t... I>(std::index_sequence<I...>) {
    const std::array<const at::Tensor*, N> data{&inputs[I].data()...};
    at::Tensor y;
    if constexpr (requires { op.needs = Needs<N>{}; }) op.needs = {mode().grad && inputs[I].requires_grad()...};
    try {
      const detail::SavingScope saving(data);
      y = op.forward(*data[I]...);
    } catch (const c10::Error&) {
      detail::rethrow(Op::info.name, data);
    } catch (const Error& e) {
      if (e.code() != Exit::internal) throw;
      detail::rethrow(Op::info.name, data);
    }
    OpFlops flops;
    if (mode().flops != nullptr) {
      flops = op.flops(*data[I]..., y);
      mode().flops->forward += flops.forward;
    }
    if (!mode().grad || !(inputs[I].requires_grad() || ...)) return Variable(std::move(y));
    auto node = std::make_shared<detail::OpNode<Op, N>>(std::move(op), y);
    node->next = {inputs[I].node()...};
    node->backward_flops = flops.backward;
    if constexpr (requires { Op::needed(flops.backward, Needs<N>{}); })
      node->backward_flops = Op::needed(flops.backward, {inputs[I].requires_grad()...});
    return Variable(std::move(y), std::move(node));
  }
  (std::make_index_sequence<N>());
}

/// FLOPs of an op that does `forward` and `backward` operations for each element of `t`.
inline OpFlops flops_each(const at::Tensor& t, double forward, double backward) {
  const auto n = static_cast<double>(t.numel());
  return {.forward = {.other = forward * n}, .backward = {.other = backward * n}};
}

}  // namespace lathe
