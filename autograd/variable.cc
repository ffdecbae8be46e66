#include "autograd/variable.h"

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

Variable Variable::parameter(at::Tensor data, std::string name) {
  auto leaf = std::make_shared<Leaf>(data, std::move(name));
  return Variable(std::move(data), std::move(leaf));
}

Leaf& Variable::leaf() const {
  auto* leaf = dynamic_cast<Leaf*>(node_.get());
  LATHE_CHECK(leaf != nullptr, describe(data_), " is no parameter");
  return *leaf;
}

const at::Tensor& Variable::grad() const { return leaf().grad; }

void Variable::register_hook(std::function<at::Tensor(const at::Tensor&)> hook) const {
  LATHE_CHECK(node_ != nullptr, "register_hook: no gradient reaches ", describe(data_));
  node_->hooks.push_back(std::move(hook));
}

Variable Variable::exp() const { return lathe::exp(*this); }
Variable Variable::tanh() const { return lathe::tanh(*this); }
Variable Variable::erf() const { return lathe::erf(*this); }
Variable Variable::pow(double exponent) const { return lathe::pow(*this, exponent); }
Variable Variable::sum(at::OptionalIntArrayRef dims, bool keepdim) const { return lathe::sum(*this, dims, keepdim); }
Variable Variable::reshape(at::IntArrayRef sizes) const { return lathe::reshape(*this, sizes); }
Variable Variable::expand(at::IntArrayRef sizes) const { return lathe::expand(*this, sizes); }
Variable Variable::transpose(int64_t a, int64_t b) const { return lathe::transpose(*this, a, b); }
Variable Variable::permute(at::IntArrayRef dims) const { return lathe::permute(*this, dims); }
Variable Variable::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  return lathe::slice(*this, dim, start, end, step);
}
Variable Variable::triu(int64_t diagonal) const { return lathe::triu(*this, diagonal); }
Variable Variable::matmul(const Variable& other) const { return lathe::matmul(*this, other); }
Variable Variable::to(at::ScalarType dtype) const { return lathe::cast(*this, dtype); }
Variable Variable::unsqueeze(int64_t dim) const {
  auto sizes = data_.sizes().vec();
  sizes.insert(sizes.begin() + (dim < 0 ? dim + data_.dim() + 1 : dim), 1);
  return lathe::reshape(*this, sizes);
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
