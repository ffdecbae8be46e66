#include "autograd/engine.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/node.h"
#include "autograd/ops/formula.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/lazy_zeros.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/named_range.h"
#include "core/sum.h"

namespace lathe {
namespace {

std::atomic<uint64_t> next_sequence{1};

at::Tensor reduce_to(const at::Tensor& g, at::IntArrayRef sizes) {
  return g.sizes() == sizes ? g : fixed_sum_to(g, sizes);
}
Variable reduce_to(const Variable& g, at::IntArrayRef sizes) { return sum_to(g, sizes); }
const at::Tensor& tensor_of(const at::Tensor& t) { return t; }
const at::Tensor& tensor_of(const Variable& v) { return v.data(); }

/// Returns whether nothing else holds t or its memory, and t is contiguous.
bool uniquely_owned(const at::Tensor& t) {
  return t.defined() && t.use_count() == 1 && t.storage().use_count() == 1 && t.is_contiguous();
}

/// The counterpart of GradSlot under create_graph, where gradients have a graph.
struct GraphSlot {
  Variable grad;
  bool seen = false;
};
template <class T>
using Slot = std::conditional_t<std::is_same_v<T, at::Tensor>, GradSlot, GraphSlot>;

/// The state of a node during a pass: the gradients of its outputs so far, and the number of
/// gradients that it still awaits.
template <class T>
struct Pending {
  c10::SmallVector<Slot<T>, 1> slots;
  int awaited = 0;
  bool runs = true;  ///< false: no requested gradient depends on this node

  Slot<T>& slot(uint32_t output) {
    if (slots.size() <= output) slots.resize(output + 1);
    return slots[output];
  }
};

/// The requested gradients, by node and output.
template <class T>
using Captured = std::map<std::pair<Node*, uint32_t>, T>;

/// One backward pass. T is at::Tensor in the ordinary pass, Variable under create_graph.
template <class T>
class Pass final : public GradSlots {
 public:
  /// If `captured` is not null, the pass sets the values of `captured` to the gradients of its
  /// keys, leaves the gradients of parameters unchanged, and runs only the nodes between the root
  /// and the keys. If `captured` is null, parameters accumulate their gradients.
  Pass(bool keep, Captured<T>* captured) : keep_(keep), captured_(captured) {}

  void run(const Edge& root, T dy) {
    count(*root.node);
    pending_[root.node.get()].slot(root.output).grad = std::move(dy);
    ready(*root.node);
    while (!ready_.empty()) {
      Node& node = *ready_.top().second;
      ready_.pop();
      visit(node);
    }
  }

  at::Tensor take(size_t i, at::ScalarType dtype) override {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      const Edge& edge = running_->next[i];
      if (!edge || captured_ != nullptr || ObserveOps::any(&OpObserver::on_gradient)) return {};
      Node& to = *edge.node;
      if (!to.outputs[edge.output].hooks.empty() || wanted_dtype(edge) != dtype) return {};
      Pending<T>& p = pending_[&to];
      GradSlot& slot = p.slot(edge.output);
      if (slot.owned()) return std::exchange(slot.grad, {});
      // A parameter's last contribution of this pass may be added directly to the gradient that
      // earlier passes left. A bfloat16 contribution may not be added directly, because the op
      // would round the sum once, but a separate addition rounds twice.
      Leaf* leaf = to.as_leaf();
      if (leaf != nullptr && dtype == at::kFloat && !slot.grad.defined() && p.awaited == 1 &&
          leaf->after_accumulate.empty())
        return leaf->take_grad();
    }
    return {};
  }

  bool is_first(size_t i, at::ScalarType dtype) override {
    const Edge& edge = running_->next[i];
    return edge && wanted_dtype(edge) == dtype &&
           !tensor_of(pending_[edge.node.get()].slot(edge.output).grad).defined();
  }

  bool frees_saved() const override { return !keep_; }

 private:
  /// Counts the gradients that each reachable node will get. If `captured_` is set, also finds the
  /// nodes that have to run.
  void count(Node& root) {
    std::vector<Node*> stack{&root}, reached{&root};
    pending_[&root];
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const Edge& edge : node->next) {
        // Push a node at its first edge only, but count every edge.
        if (edge && pending_[edge.node.get()].awaited++ == 0) {
          stack.push_back(edge.node.get());
          reached.push_back(edge.node.get());
        }
      }
    }

    if (captured_ == nullptr) return;

    // A node is newer than the nodes of its inputs. In order of creation, `runs` of a node's inputs
    // is therefore known before `runs` of the node.
    std::sort(reached.begin(), reached.end(),
              [](Node* a, Node* b) { return a->sequence < b->sequence; });

    std::unordered_set<Node*> asked;
    for (const auto& [place, gradient] : *captured_) asked.insert(place.first);
    for (Node* node : reached) {
      pending_[node].runs =
          std::any_of(node->next.begin(), node->next.end(), [&](const Edge& edge) {
            return edge && (pending_[edge.node.get()].runs || asked.contains(edge.node.get()));
          });
    }
  }

  void visit(Node& node) {
    Pending<T>& p = pending_[&node];
    GradList<T> dy;

    bool any = false;
    for (uint32_t i = 0; i < node.outputs.size(); ++i) {
      Slot<T>& slot = p.slot(i);
      // Hooks run first, so that grad() and observers receive the gradient that the hooks returned.
      run_hooks(node, i, slot);
      if (captured_ != nullptr) {
        if (const auto found = captured_->find({&node, i}); found != captured_->end()) {
          found->second = slot.grad;
          slot.seen = true;
        }
      }

      if (ObserveOps::any(&OpObserver::on_gradient)) [[unlikely]] {
        ObserveOps::notify(&OpObserver::on_gradient, node, tensor_of(slot.grad));
        slot.seen = true;
      }

      any = any || tensor_of(slot.grad).defined();
    }

    // A parameter ends the path. A pass for grad() does not change the parameter's .grad.
    if (Leaf* leaf = node.as_leaf()) {
      if constexpr (std::is_same_v<T, at::Tensor>) {
        if (captured_ == nullptr) leaf->accumulate(std::move(p.slot(0)));
      }
      return;
    }

    // This node does not run, but the nodes of its inputs still wait for a gradient from it.
    if (!p.runs) {
      pass_on(node, {});
      return;
    }

    for (auto& slot : p.slots) dy.push_back(std::move(slot.grad));
    p.slots.clear();

    // If none of the node's outputs has a gradient, the op does not run and its inputs get no
    // gradient.
    GradList<T> grads;
    if (any) {
      NeedsList needs;
      for (const Edge& edge : node.next) needs.push_back(needs_gradient(edge));

      running_ = &node;
      const NamedRange range([&] { return std::string(node.name()) + " backward"; });
      if constexpr (std::is_same_v<T, at::Tensor>)
        grads = node.backward(dy, needs, *this);
      else
        grads = node.backward(dy, needs);

      if (mode().flops != nullptr) mode().flops->backward += node.backward_flops;
      if constexpr (std::is_same_v<T, at::Tensor>) {
        if (mode().observers != nullptr) [[unlikely]]
          ObserveOps::notify(&OpObserver::on_backward,
                             BackwardResult{.node = node, .dy = dy, .grads = grads});
      }
    }

    if (!keep_) node.release();
    dy.clear();  // so that this list does not co-own a gradient that the op returned unchanged
    pass_on(node, std::move(grads));
  }

  bool needs_gradient(const Edge& edge) {
    if (!edge) return false;
    if (captured_ == nullptr) return true;
    return pending_[edge.node.get()].runs || captured_->contains({edge.node.get(), edge.output});
  }

  void pass_on(Node& node, GradList<T> grads) {
    for (size_t i = 0; i < node.next.size(); ++i) {
      const Edge& edge = node.next[i];
      if (!edge) continue;
      // An op may return a gradient that grad() does not need. Hooks must not see it, since it may
      // be only a part of the sum.
      if (i < grads.size() && tensor_of(grads[i]).defined() && needs_gradient(edge))
        add(edge, std::move(grads[i]), node);
      if (--pending_[edge.node.get()].awaited == 0) ready(*edge.node);
    }
  }

  void add(const Edge& to, T grad, const Node& from) {
    fit(to, grad, from);
    Slot<T>& slot = pending_[to.node.get()].slot(to.output);
    if (!tensor_of(slot.grad).defined()) {
      slot.grad = std::move(grad);
      return;
    }
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (slot.owned())
        add_to(slot.grad, grad);
      else
        slot.grad = slot.grad + grad;
    } else {
      slot.grad = slot.grad + grad;
    }
  }

  void ready(Node& node) {
    // Run the newest node first, but a parameter before all other nodes, so that work which its
    // hooks start can overlap with the remaining pass.
    ready_.emplace(node.sequence | (node.as_leaf() != nullptr ? uint64_t{1} << 63 : 0), &node);
  }

  static at::ScalarType wanted_dtype(const Edge& to) {
    const Leaf* leaf = to.node->as_leaf();
    return leaf != nullptr ? leaf->precision.grad_dtype : to.node->outputs[to.output].dtype;
  }

  /// Sums the gradient over broadcast dimensions and casts it, so that it has the shape of the
  /// output to which `edge` leads, and the dtype that wanted_dtype() returns for the edge.
  void fit(const Edge& edge, T& grad, const Node& from) {
    const Node::Output& to = edge.node->outputs[edge.output];
    const at::Tensor& t = tensor_of(grad);
    LATHE_CHECK(t.device() == to.device, from.name(), ": gradient on ", t.device().str(),
                " for an input on ", to.device.str());
    if (t.sizes() != at::IntArrayRef(to.sizes)) {
      LATHE_CHECK(at::is_expandable_to(to.sizes, t.sizes()), from.name(), ": gradient of shape ",
                  describe(t.sizes()), " for an input of shape ", describe(to.sizes));
      grad = reduce_to(grad, to.sizes);
    }
    if (const at::ScalarType dtype = wanted_dtype(edge); tensor_of(grad).scalar_type() != dtype)
      grad = cast(grad, dtype);
  }

  void run_hooks(const Node& node, uint32_t output, Slot<T>& slot) {
    if (node.outputs[output].hooks.empty()) return;
    const auto hooks = node.outputs[output].hooks;  // a copy, because a hook may remove itself
    for (const auto& hook : hooks) {
      if (!tensor_of(slot.grad).defined()) return;
      slot.seen = true;
      const at::Tensor replaced = (*hook)(tensor_of(slot.grad));
      if (!replaced.defined()) continue;
      const at::Tensor& was = tensor_of(slot.grad);
      LATHE_CHECK((std::is_same_v<T, at::Tensor>), node.name(),
                  ": a hook can't replace a gradient under create_graph");
      LATHE_CHECK(replaced.sizes() == was.sizes() && replaced.scalar_type() == was.scalar_type(),
                  node.name(), ": a hook returned ", describe(replaced), " for a gradient of ",
                  describe(was));
      slot.grad = T(replaced);
    }
  }

  bool keep_;
  Captured<T>* captured_;
  Node* running_ = nullptr;
  std::unordered_map<Node*, Pending<T>> pending_;
  std::priority_queue<std::pair<uint64_t, Node*>> ready_;
};

/// Returns the gradient that a pass begins with. Error messages begin with `of`.
at::Tensor seed_of(const char* of, const Variable& root, const at::Tensor& dy) {
  LATHE_CHECK(root.requires_grad(), of, ": ", describe(root.data()),
              " does not depend on any parameter");
  if (dy.defined()) {
    LATHE_CHECK(dy.sizes() == root.sizes(), of, ": the gradient given is ", describe(dy), " for ",
                describe(root.data()));
    LATHE_CHECK(dy.device() == root.data().device(), of, ": the gradient given is on ",
                dy.device().str(), ", not ", root.data().device().str());
    return dy.to(root.dtype());
  }
  LATHE_CHECK(root.numel() == 1, of, ": ", describe(root.data()),
              " has more than one element; give its gradient as `dy`");
  return at::ones_like(root.data());
}

}  // namespace

bool GradSlot::owned() const { return !seen && uniquely_owned(grad); }

Node::Node(std::span<const at::Tensor> outputs_)
    : sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)) {
  for (const at::Tensor& t : outputs_) {
    outputs.push_back({.sizes = {t.sizes().begin(), t.sizes().end()},
                       .dtype = t.scalar_type(),
                       .device = t.device(),
                       .hooks = {}});
  }
}

bool Node::fits(std::span<const at::Tensor> tensors) const {
  return std::equal(tensors.begin(), tensors.end(), outputs.begin(), outputs.end(),
                    [](const at::Tensor& t, const Output& o) {
                      return t.sizes() == at::IntArrayRef(o.sizes) && t.scalar_type() == o.dtype;
                    });
}

namespace {

/// An object that a node held: another node, a hook or a recomputation. Such an object may itself
/// hold nodes.
using OwnedRef = std::shared_ptr<void>;

/// Destroys the objects without recursion. The outermost call on a thread destroys them one by one;
/// nested calls, which these destructors make, only append to the list of the outermost call. So
/// the stack depth does not grow with the length of a chain.
void destroy_later(std::vector<OwnedRef>& held) {
  static thread_local std::vector<OwnedRef>* drain = nullptr;
  if (drain != nullptr) {
    std::move(held.begin(), held.end(), std::back_inserter(*drain));
    return;
  }
  drain = &held;
  while (!held.empty()) {
    const OwnedRef last = std::move(held.back());
    held.pop_back();
  }
  drain = nullptr;
}

}  // namespace

Node::~Node() {
  std::vector<OwnedRef> held;
  for (Edge& edge : next) {
    if (edge) held.emplace_back(std::move(edge.node));
  }
  if (recomputed) held.emplace_back(std::move(recomputed));
  for (Output& output : outputs)
    std::move(output.hooks.begin(), output.hooks.end(), std::back_inserter(held));
  if (!held.empty()) destroy_later(held);
}

Leaf::~Leaf() {
  if (after_accumulate.empty()) return;
  std::vector<OwnedRef> held(std::make_move_iterator(after_accumulate.begin()),
                             std::make_move_iterator(after_accumulate.end()));
  destroy_later(held);
}

void Leaf::accumulate(GradSlot slot) {
  if (!slot.grad.defined() || frozen) return;
  {
    const std::lock_guard lock(mutex_);
    if (grad.defined()) {
      add_to(grad, slot.grad);
    } else {
      const bool whole = slot.owned() && slot.grad.storage().nbytes() == slot.grad.nbytes();
      grad = whole ? std::move(slot.grad) : slot.grad.clone(at::MemoryFormat::Contiguous);
      if (grad.is_cpu()) recategorize(grad.storage().data_ptr(), Memory::gradients);
    }
  }
  if (after_accumulate.empty()) return;
  const auto hooks = after_accumulate;  // a copy, because a hook may remove itself
  for (const auto& hook : hooks) (*hook)(*this);
}

at::Tensor Leaf::take_grad() {
  const std::lock_guard lock(mutex_);
  return uniquely_owned(grad) ? std::exchange(grad, {}) : at::Tensor();
}

void backward(const Variable& root, at::Tensor dy, bool retain) {
  const NoGrad no_grad;
  const at::AutoDispatchBelowAutograd plain;
  at::Tensor seed = seed_of("backward", root, dy);
  dy.reset();
  Pass<at::Tensor>(retain, nullptr).run(root.edge(), std::move(seed));
}

std::vector<Variable> grad(const Variable& root, const std::vector<Variable>& xs,
                           const Variable& dy, bool create_graph, std::optional<bool> retain) {
  const at::Tensor seed = seed_of("grad", root, dy.data());
  const bool keep = retain.value_or(create_graph);
  std::vector<Variable> out;
  const auto collect = [&]<class T>(T first) {
    Captured<T> captured;
    for (const auto& x : xs) {
      if (x.requires_grad()) captured[{x.node().get(), x.edge().output}];
    }
    Pass<T>(keep, &captured).run(root.edge(), std::move(first));
    for (const auto& x : xs)
      out.emplace_back(x.requires_grad() ? captured[{x.node().get(), x.edge().output}] : T());
  };
  if (create_graph) {
    const ModeGuard guard;
    mode().grad = true;  // even within NoGrad, as in PyTorch
    collect(dy.defined() ? cast(dy, root.dtype()) : Variable(seed));
  } else {
    const NoGrad no_grad;
    const at::AutoDispatchBelowAutograd plain;
    collect(seed);
  }
  return out;
}

}  // namespace lathe
