#include "autograd/variable.h"

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

Variable Variable::parameter(at::Tensor data, std::string name) {
  auto leaf = std::make_shared<Leaf>(data, std::move(name));
  return Variable(std::move(data), Edge(std::move(leaf)));
}

Leaf* Variable::as_leaf() const { return edge_ ? edge_.node->as_leaf() : nullptr; }

Leaf& Variable::leaf() const {
  Leaf* leaf = as_leaf();
  LATHE_CHECK(leaf != nullptr, describe(data_), " is no parameter");
  return *leaf;
}

const at::Tensor& Variable::grad() const { return leaf().grad; }

void Variable::register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const {
  LATHE_CHECK(edge_, "register_hook: no gradient reaches ", describe(data_));
  edge_.node->outputs[edge_.output].hooks.push_back(std::move(hook));
}

void Precision::copy_low(const at::Tensor& parameter, at::ScalarType dtype) {
  low = parameter.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  low_is_current(parameter);
}

void Precision::refresh_low(const at::Tensor& parameter) {
  if (!low.defined() || low_of == parameter._version()) return;
  low.copy_(parameter);
  low_is_current(parameter);
}

Variable operator+(const Variable& a, const Variable& b) { return add(a, b); }
Variable operator-(const Variable& a, const Variable& b) { return sub(a, b); }
Variable operator*(const Variable& a, const Variable& b) { return mul(a, b); }
Variable operator/(const Variable& a, const Variable& b) { return div(a, b); }
Variable operator-(const Variable& a) { return neg(a); }
Variable operator+(const Variable& a, double b) { return add_scalar(a, b); }
Variable operator-(const Variable& a, double b) { return add_scalar(a, -b); }
Variable operator*(const Variable& a, double b) { return mul_scalar(a, b); }
Variable operator/(const Variable& a, double b) { return mul_scalar(a, 1 / b); }

}  // namespace lathe
