#include "autograd/engine.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones_like.h>

#include <atomic>
#include <queue>
#include <unordered_map>

#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"

namespace lathe {
namespace {

std::atomic<uint64_t> next_sequence{1};

using Giver = std::function<at::Tensor(Node&)>;
/// Gives out pending gradients of the pass that runs on this thread; null where none does.
thread_local const Giver* pending_gradients = nullptr;

at::Tensor reduce_to(const at::Tensor& g, at::IntArrayRef sizes) { return at::sum_to(g, sizes); }
Variable reduce_to(const Variable& g, at::IntArrayRef sizes) { return sum_to(g, sizes); }
const at::Tensor& tensor_of(const at::Tensor& t) { return t; }
const at::Tensor& tensor_of(const Variable& v) { return v.data(); }

/// While alive, `node` is the one whose backward runs on this thread, and `giver` gives out pending gradients.
class Running {
 public:
  Running(Node& node, const Giver& giver) : outer_(running_node()), outer_giver_(pending_gradients) {
    running_node() = &node;
    pending_gradients = &giver;
  }
  ~Running() {
    running_node() = outer_;
    pending_gradients = outer_giver_;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Node* outer_;
  const Giver* outer_giver_;
};

/// What the engine knows of a node while it runs: the gradient so far, and how many are still to come.
template <class T>
struct Pending {
  T grad;
  int awaited = 0;
  bool owned = false;  // grad is a sum made here, so it may be added to in place
};

/// T is at::Tensor in the ordinary pass, Variable under create_graph.
template <class T>
class Pass {
 public:
  Pass(bool keep, bool accumulate) : keep_(keep), accumulate_(accumulate) {}

  /// Gradients of nodes in `captured` are kept in it.
  void run(Node& root, T dy, std::unordered_map<Node*, T>* captured) {
    captured_ = captured != nullptr;
    count(root);
    pending_[&root].grad = std::move(dy);
    arrive_ready(root);
    while (!ready_.empty()) {
      Node& node = *ready_.top().second;
      ready_.pop();
      T dy_node = take(node);
      if (captured != nullptr) {
        if (auto found = captured->find(&node); found != captured->end()) found->second = dy_node;
      }
      if (mode().observe_gradient != nullptr) (*mode().observe_gradient)(node, tensor_of(dy_node));
      visit(node, dy_node);
    }
  }

 private:
  /// How many gradients each reachable node will get.
  void count(Node& root) {
    std::vector<Node*> stack{&root};
    pending_[&root];
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const auto& next : node->next) {
        if (next && pending_[next.get()].awaited++ == 0) stack.push_back(next.get());
      }
    }
  }

  void visit(Node& node, const T& dy) {
    if (auto* leaf = dynamic_cast<Leaf*>(&node)) {
      if constexpr (std::is_same_v<T, at::Tensor>) {
        if (accumulate_) leaf->accumulate(dy);
      }
      return;
    }
    GradList<T> grads;
    if (tensor_of(dy).defined()) {
      const Running running(node, give_);
      grads = node.backward(dy);
      if (mode().flops != nullptr) mode().flops->backward += node.backward_flops;
    }
    if (!keep_) node.release();
    for (size_t i = 0; i < node.next.size(); ++i) {
      if (node.next[i]) arrive(*node.next[i], i < grads.size() ? std::move(grads[i]) : T(), node);
    }
  }

  void arrive(Node& to, T grad, const Node& from) {
    auto& p = pending_[&to];
    if (tensor_of(grad).defined()) {
      fit(to, grad, from);
      if (!tensor_of(p.grad).defined()) {
        p.grad = std::move(grad);
      } else if (p.owned && std::is_same_v<T, at::Tensor>) {
        tensor_of(p.grad).add_(tensor_of(grad));
      } else {
        p.grad = p.grad + grad;
        p.owned = true;
      }
    }
    if (--p.awaited == 0) arrive_ready(to);
  }

  void arrive_ready(Node& node) {
    ready_.emplace(node.sequence | (dynamic_cast<Leaf*>(&node) ? uint64_t{1} << 63 : 0), &node);
  }

  /// Sums over broadcast dimensions and casts, so that the gradient looks like what it is the gradient of.
  void fit(const Node& to, T& grad, const Node& from) {
    const at::Tensor& t = tensor_of(grad);
    LATHE_CHECK(t.device() == to.device, from.name(), ": gradient on ", t.device().str(), " for an input on ",
                to.device.str());
    if (t.sizes() != at::IntArrayRef(to.sizes)) {
      LATHE_CHECK(at::is_expandable_to(to.sizes, t.sizes()), from.name(), ": gradient of shape ", describe(t.sizes()),
                  " for an input of shape ", describe(to.sizes));
      grad = reduce_to(grad, to.sizes);
    }
    const auto* leaf = dynamic_cast<const Leaf*>(&to);
    const at::ScalarType dtype = leaf != nullptr ? leaf->grad_dtype : to.dtype;
    if (tensor_of(grad).scalar_type() != dtype) grad = grad.to(dtype);
  }

  T take(Node& node) {
    T grad = std::move(pending_[&node].grad);
    pending_[&node].grad = T();
    for (const auto& hook : node.hooks) {
      if (!tensor_of(grad).defined()) break;
      const at::Tensor replaced = hook(tensor_of(grad));
      if (!replaced.defined()) continue;
      const at::Tensor& was = tensor_of(grad);
      LATHE_CHECK((std::is_same_v<T, at::Tensor>), node.name(), ": a hook can't replace a gradient under create_graph");
      LATHE_CHECK(replaced.sizes() == was.sizes() && replaced.scalar_type() == was.scalar_type(), node.name(),
                  ": a hook gave ", describe(replaced), " for a gradient of ", describe(was));
      grad = T(replaced);
    }
    return grad;
  }

  /// See take_pending.
  at::Tensor give(Node& to) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (!to.hooks.empty() || mode().observe_gradient != nullptr || captured_) return {};
      at::Tensor& held = pending_[&to].grad;
      const auto sole = [](const at::Tensor& t) {
        return t.defined() && t.use_count() == 1 && t.storage().use_count() == 1 && t.is_contiguous();
      };
      if (sole(held)) return std::move(held);
      auto* leaf = dynamic_cast<Leaf*>(&to);
      const bool whole = leaf != nullptr && accumulate_ && !held.defined() && pending_[&to].awaited == 1;
      if (whole && leaf->after_accumulate.empty() && sole(leaf->grad)) return std::move(leaf->grad);
    }
    return {};
  }

  bool keep_, accumulate_;
  bool captured_ = false;
  const Giver give_ = [this](Node& to) { return give(to); };
  std::unordered_map<Node*, Pending<T>> pending_;
  std::priority_queue<std::pair<uint64_t, Node*>> ready_;
};

at::Tensor seed_of(const Variable& root, const at::Tensor& dy) {
  LATHE_CHECK(root.requires_grad(), "backward: ", describe(root.data()), " does not depend on any parameter");
  if (dy.defined()) {
    LATHE_CHECK(dy.sizes() == root.sizes(), "backward: the gradient given is ", describe(dy), " for ",
                describe(root.data()));
    LATHE_CHECK(dy.device() == root.data().device(), "backward: the gradient given is on ", dy.device().str(), ", not ",
                root.data().device().str());
    return dy.to(root.dtype());
  }
  LATHE_CHECK(root.numel() == 1, "backward: ", describe(root.data()),
              " has more than one element; give its gradient as the second argument");
  return at::ones_like(root.data());
}

}  // namespace

Node::Node(const at::Tensor& output_)
    : sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)),
      sizes(output_.sizes().begin(), output_.sizes().end()),
      dtype(output_.scalar_type()),
      device(output_.device()),
      output(output_.unsafeGetTensorImpl()) {}

Node::~Node() {
  // The first destructor on the stack drains; those it sets off only hand over what they hold.
  static thread_local std::vector<std::shared_ptr<Node>>* drain = nullptr;
  if (drain != nullptr) {
    for (auto& n : next) drain->push_back(std::move(n));
    return;
  }
  std::vector<std::shared_ptr<Node>> pending(std::make_move_iterator(next.begin()),
                                             std::make_move_iterator(next.end()));
  drain = &pending;
  while (!pending.empty()) {
    const auto node = std::move(pending.back());
    pending.pop_back();
  }
  drain = nullptr;
}

Node*& running_node() {
  static thread_local Node* node = nullptr;
  return node;
}

at::Tensor take_pending(size_t i, at::ScalarType dtype) {
  Node* node = running_node();
  if (pending_gradients == nullptr || node == nullptr || i >= node->next.size() || !node->next[i]) return {};
  const Node& to = *node->next[i];
  const auto* leaf = dynamic_cast<const Leaf*>(&to);
  if ((leaf != nullptr ? leaf->grad_dtype : to.dtype) != dtype) return {};
  return (*pending_gradients)(*node->next[i]);
}

void Leaf::accumulate(at::Tensor dy) {
  if (!dy.defined()) return;
  if (grad.defined()) {
    grad.add_(dy);
  } else {
    // A tensor that something else holds too (an op may hand one gradient to two inputs) must not be added to later.
    const bool sole = dy.use_count() <= 2 && dy.storage().use_count() == 1 && dy.is_contiguous() &&
                      dy.storage().nbytes() == dy.nbytes();
    grad = sole ? std::move(dy) : dy.clone(at::MemoryFormat::Contiguous);
    if (grad.is_cpu()) recategorize(grad.storage().data_ptr(), Memory::gradients);
  }
  for (const auto& hook : after_accumulate) hook(*this);
}

void backward(const Variable& root, const at::Tensor& dy, bool retain) {
  const NoGrad no_grad;
  const at::AutoDispatchBelowAutograd plain;
  at::Tensor seed = seed_of(root, dy);
  Pass<at::Tensor>(retain, /*accumulate=*/true).run(*root.node(), std::move(seed), nullptr);
  if (!retain) clear_cast_cache();  // their nodes have run and are of no use to another graph
}

std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs, const Variable& dy,
                           bool create_graph) {
  const at::Tensor seed = seed_of(root, dy.data());
  std::vector<Variable> out;
  const auto collect = [&](auto pass, auto first, auto captured) {
    for (const auto& x : xs) {
      if (x.requires_grad()) captured[x.node().get()];
    }
    pass.run(*root.node(), first, &captured);
    for (const auto& x : xs) out.emplace_back(x.requires_grad() ? captured[x.node().get()] : decltype(first)());
  };
  if (create_graph) {
    collect(Pass<Variable>(true, false), dy.defined() ? dy : Variable(seed), std::unordered_map<Node*, Variable>());
  } else {
    const NoGrad no_grad;
    const at::AutoDispatchBelowAutograd plain;
    collect(Pass<at::Tensor>(false, false), seed, std::unordered_map<Node*, at::Tensor>());
  }
  return out;
}

}  // namespace lathe
