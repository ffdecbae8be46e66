#include "autograd/variable.h"

#include <ATen/TensorOperators.h>

#include <array>

#include "autograd/chain_trace.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/mode.h"

namespace lathe {

void Variable::fail_undefined() {
  fail(Exit::internal,
       "a Variable is undefined: it holds no tensor; make one by Variable(tensor) or as a result "
       "of an op");
}

Variable Variable::parameter(at::Tensor data, std::string name) {
  auto leaf = std::make_shared<Leaf>(data, std::move(name));
  return Variable(std::move(data), Edge(std::move(leaf)));
}

bool Variable::requires_grad() const { return edge_ && !edge_.node->frozen; }

Variable& Variable::requires_grad_(bool on) & {
  // Run deferred ops first: ops that were called before this call must still read the previous
  // state of the parameter.
  if (detail::has_deferred_ops) detail::compute_deferred();
  if (!edge_) {
    if (on) *this = parameter(data());
    return *this;
  }
  Leaf* leaf = as_leaf();
  LATHE_CHECK(leaf != nullptr, "requires_grad_: ", describe(data_), " was made by ",
              edge_.node->name(),
              "; only parameters can be frozen, and detach() returns a tensor without the graph");
  leaf->frozen = !on;
  if (!on) leaf->grad.reset();
  return *this;
}

const Edge& Variable::edge() const {
  static const Edge none;
  return requires_grad() ? edge_ : none;
}

Leaf* Variable::as_leaf() const { return edge_ ? edge_.node->as_leaf() : nullptr; }

Leaf& Variable::leaf() const {
  Leaf* leaf = as_leaf();
  LATHE_CHECK(leaf != nullptr, describe(data_), " is not a parameter");
  return *leaf;
}

const at::Tensor& Variable::grad() const { return leaf().grad; }

void Variable::backward(const at::Tensor& dy, bool retain) const {
  lathe::backward(*this, dy, retain);
}

namespace {

/// Adds a hook to a node, unless a recomputed function registers the hook for the second time.
template <class Hook>
HookHandle add_hook(const std::shared_ptr<Node>& node, std::vector<std::shared_ptr<Hook>>& hooks,
                    Hook hook) {
  if (mode().chain != nullptr) [[unlikely]]
    detail::abandon_chain();  // a node within a chain cannot have hooks
  const bool is_replayed = mode().replaying != nullptr;
  HookHandle handle;
  if (is_replayed) {
    handle = mode().replaying->next_hook();
  } else {
    hooks.push_back(std::make_shared<Hook>(std::move(hook)));
    handle = HookHandle(node, hooks.back());
  }

  if (mode().recording != nullptr) mode().recording->append_hook(handle);
  return handle;
}

}  // namespace

HookHandle Variable::register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const {
  LATHE_CHECK(edge_, "register_hook: no gradient reaches ", describe(data_));
  return add_hook(edge_.node, edge_.node->outputs[edge_.output].hooks, std::move(hook));
}

HookHandle Variable::register_post_accumulate_grad_hook(std::function<void(Leaf&)> hook) const {
  return add_hook(edge_.node, leaf().after_accumulate, std::move(hook));
}

void HookHandle::remove() {
  const auto node = node_.lock();
  const auto hook = hook_.lock();
  if (!node || !hook) return;
  const auto drop = [&](auto& hooks) {
    std::erase_if(hooks, [&](const auto& h) { return h == hook; });
  };
  for (auto& output : node->outputs) drop(output.hooks);
  if (Leaf* leaf = node->as_leaf()) drop(leaf->after_accumulate);
}

Variable Variable::index(const std::vector<Index>& indices) const {
  require_defined("index", {this});
  Variable x = *this;
  std::vector<at::Tensor> taken;  // index of each remaining dim; undefined: the full dim
  bool takes = false;
  int64_t dim = 0;
  for (const Index& index : indices) {
    // select() removes the dim from x, so `dim` now stands for the next dim.
    if (const auto* position = std::get_if<int64_t>(&index)) {
      x = select(x, dim, *position);
    } else if (const auto* range = std::get_if<Slice>(&index)) {
      LATHE_CHECK(dim < x.dim(), "index: ", describe(data_), " has too few dims for ",
                  indices.size(), " indices");
      // Skip a full range, because its slice would add a node without effect.
      if (range->start || range->end || range->step != 1)
        x = slice(x, dim, range->start.value_or(0), range->end.value_or(x.size(dim)), range->step);
      taken.emplace_back();
      ++dim;
    } else {
      // Apply all tensor indices in one op at the end, because they are broadcast with each other.
      const auto& t = std::get<at::Tensor>(index);
      LATHE_CHECK(t.defined(), "index: an undefined tensor for dim ", dim, " of ", describe(data_));
      takes = true;
      taken.push_back(t);
      dim += t.scalar_type() == at::kBool ? t.dim() : 1;
    }
  }

  return takes ? lathe::index(x, taken) : x;
}

void Precision::copy_low(const at::Tensor& parameter, at::ScalarType dtype) {
  low = parameter.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  mark_low_current(parameter);
}

void Precision::refresh_low(const at::Tensor& parameter) {
  if (!low.defined() || low_version == parameter._version()) return;
  low.copy_(parameter);
  mark_low_current(parameter);
}

Variable Variable::plus_whole(int64_t number) const {
  if (mode().chain != nullptr) [[unlikely]]
    detail::abandon_chain_if_used(std::array{*this});
  return Variable(data() + at::Scalar(number));
}

Variable Variable::times_whole(int64_t number) const {
  if (mode().chain != nullptr) [[unlikely]]
    detail::abandon_chain_if_used(std::array{*this});
  return Variable(data() * at::Scalar(number));
}

Variable operator+(const Variable& a, const Variable& b) { return add(a, b); }
Variable operator-(const Variable& a, const Variable& b) { return sub(a, b); }
Variable operator*(const Variable& a, const Variable& b) { return mul(a, b); }
Variable operator/(const Variable& a, const Variable& b) { return div(a, b); }
Variable operator-(const Variable& a) { return neg(a); }

namespace detail {
namespace {

template <class A, class B>
auto arithmetic(Arithmetic op, const A& a, const B& b) {
  switch (op) {
    case Arithmetic::add: return a + b;
    case Arithmetic::sub: return a - b;
    case Arithmetic::mul: return a * b;
    default: return a / b;
  }
}

template <class B>
void in_place(Arithmetic op, at::Tensor a, const B& b) {
  switch (op) {
    case Arithmetic::add: a += b; break;
    case Arithmetic::sub: a -= b; break;
    case Arithmetic::mul: a *= b; break;
    default: a /= b;
  }
}

template <class B>
at::Tensor compare_to(Comparison op, const at::Tensor& a, const B& b) {
  switch (op) {
    case Comparison::less: return a.lt(b);
    case Comparison::less_equal: return a.le(b);
    case Comparison::greater: return a.gt(b);
    case Comparison::greater_equal: return a.ge(b);
    case Comparison::equal: return a.eq(b);
    default: return a.ne(b);
  }
}

Comparison mirrored(Comparison op) {
  switch (op) {
    case Comparison::less: return Comparison::greater;
    case Comparison::less_equal: return Comparison::greater_equal;
    case Comparison::greater: return Comparison::less;
    case Comparison::greater_equal: return Comparison::less_equal;
    default: return op;
  }
}

/// Runs f and turns an error of ATen into an Error that names the operation and its operands.
template <class F>
auto with_named_error(const char* what, const Operand& a, const Operand& b, F&& f) {
  try {
    return f();
  } catch (const c10::Error&) {
    rethrow(what, std::array<const at::Tensor*, 2>{&a.variable.data(), &b.variable.data()});
  }
}

}  // namespace

void check_operand(const Variable& v) { require_defined("operator", {&v}); }

void assign(Arithmetic op, Variable& a, const Operand& b, bool is_temporary) {
  const bool is_number = !b.variable.defined();
  if (!mode().grad || !(a.requires_grad() || b.variable.requires_grad())) {
    if (mode().chain != nullptr) [[unlikely]]
      abandon_chain_if_used(std::array{a, b.variable});
    with_named_error("in-place arithmetic", a, b, [&] {
      if (is_number)
        in_place(op, a.data(), b.scalar());
      else
        in_place(op, a.data(), b.variable.data());
    });
    return;
  }
  LATHE_CHECK(!is_temporary, "in-place arithmetic on a part of ", describe(a.data()),
              " can't be recorded in a graph; build the new tensor with cat() or masked_fill(), or "
              "change values under NoGrad");
  LATHE_CHECK(a.as_leaf() == nullptr, "in-place arithmetic on the parameter ",
              a.node() ? a.node()->name() : "",
              " is not allowed while a graph is recorded; change its values under NoGrad, or "
              "assign the result to another Variable");
  a = is_number ? arithmetic(op, a, b.number) : arithmetic(op, a, b.variable);
}

at::Tensor compare(Comparison op, const Operand& a, const Operand& b) {
  if (mode().chain != nullptr) [[unlikely]] {
    if (at::Tensor mask = compare_in_chain(op, a, b); mask.defined()) return mask;
  }
  return with_named_error("comparison", a, b, [&] {
    if (!b.variable.defined()) return compare_to(op, a.variable.data(), b.scalar());
    if (!a.variable.defined()) return compare_to(mirrored(op), b.variable.data(), a.scalar());
    return compare_to(op, a.variable.data(), b.variable.data());
  });
}

}  // namespace detail

}  // namespace lathe
