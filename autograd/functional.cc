#include "autograd/functional.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/io/text.h"
#include "core/mode.h"

namespace lathe {
namespace {

/// Returns new parameters with the values of xs, and the result of f for them.
std::pair<std::vector<Variable>, Variable> evaluate(const char* name, const Function& f,
                                                    const std::vector<Variable>& xs) {
  const ModeGuard guard;
  mode().grad = true;
  std::vector<Variable> in;
  for (const Variable& x : xs) {
    LATHE_CHECK(x.defined() && x.data().is_floating_point(), name,
                ": inputs must have a floating-point dtype, not ", describe(x.data()));
    in.push_back(Variable::parameter(x.data()));
  }
  return {in, f(in)};
}

void check_like(const char* name, const std::vector<Variable>& vs,
                const std::vector<Variable>& xs) {
  LATHE_CHECK(vs.size() == xs.size(), name, ": ", quantity(std::ssize(vs), "vector"), " for ",
              quantity(std::ssize(xs), "input"));
  for (size_t i = 0; i < xs.size(); ++i) {
    LATHE_CHECK(vs[i].defined() && vs[i].sizes() == xs[i].sizes(), name, ": vector ", i, " is ",
                describe(vs[i].data()), " for an input of ", describe(xs[i].data()));
  }
}

std::vector<Variable> or_zeros(std::vector<Variable> grads, const std::vector<Variable>& xs) {
  for (size_t i = 0; i < xs.size(); ++i) {
    if (!grads[i].defined()) grads[i] = Variable(at::zeros_like(xs[i].data()));
    grads[i] = grads[i].detach();
  }
  return grads;
}

/// Returns the sum of a[i] b[i] over the defined a[i]; undefined if there is none.
Variable dot(const std::vector<Variable>& a, const std::vector<Variable>& b) {
  Variable total;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined()) continue;
    const Variable term = sum(a[i] * b[i]);
    total = total.defined() ? total + term : term;
  }
  return total;
}

}  // namespace

std::pair<Variable, std::vector<Variable>> vjp(const Function& f, const std::vector<Variable>& xs,
                                               const Variable& v) {
  const auto [in, y] = evaluate("vjp", f, xs);
  if (!y.requires_grad()) return {y, or_zeros(std::vector<Variable>(xs.size()), xs)};
  return {y.detach(), or_zeros(grad(y, in, v), xs)};
}

std::pair<Variable, Variable> jvp(const Function& f, const std::vector<Variable>& xs,
                                  const std::vector<Variable>& vs) {
  check_like("jvp", vs, xs);
  const auto [in, y] = evaluate("jvp", f, xs);
  const Variable u = Variable::parameter(at::ones_like(y.data()));
  const ModeGuard guard;
  mode().grad = true;
  const Variable product =
      y.requires_grad() ? dot(grad(y, in, u, /*create_graph=*/true), vs) : Variable();
  if (!product.defined() || !product.requires_grad())
    return {y.detach(), Variable(at::zeros_like(y.data()))};
  return {y.detach(), or_zeros(grad(product, {u}), {u})[0]};
}

std::pair<Variable, std::vector<Variable>> hvp(const Function& f, const std::vector<Variable>& xs,
                                               const std::vector<Variable>& vs) {
  check_like("hvp", vs, xs);
  const auto [in, y] = evaluate("hvp", f, xs);
  LATHE_CHECK(y.numel() == 1, "hvp: the function gives ", describe(y.data()),
              "; it must give one element");
  const ModeGuard guard;
  mode().grad = true;
  const Variable product =
      y.requires_grad() ? dot(grad(y, in, {}, /*create_graph=*/true), vs) : Variable();
  if (!product.defined() || !product.requires_grad())
    return {y.detach(), or_zeros(std::vector<Variable>(xs.size()), xs)};
  return {y.detach(), or_zeros(grad(product, in), xs)};
}

}  // namespace lathe
