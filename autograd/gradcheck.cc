#include "autograd/gradcheck.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

/// Returns the indices of element i of a tensor of `sizes`, such as "[0,2]".
std::string place_of(int64_t i, at::IntArrayRef sizes) {
  std::vector<int64_t> place(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    place[d] = i % sizes[d];
    i /= sizes[d];
  }
  return describe(place);
}

}  // namespace

void gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
               const std::vector<Variable>& inputs, const GradcheckOptions& options) {
  std::vector<Variable> x, asked;
  for (const Variable& v : inputs) {
    const bool real = v.defined() && v.data().is_floating_point();
    x.push_back(
        real ? Variable::parameter(
                   v.data().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous())
             : v);
    if (real) asked.push_back(x.back());
  }

  LATHE_CHECK(!asked.empty(), "gradcheck: no input has a floating-point dtype");

  const Variable y = fn(x);
  LATHE_CHECK(y.dtype() == at::kDouble, "gradcheck: the function computes in ",
              dtype_name(y.dtype()), " for float64 inputs; differences need float64");
  LATHE_CHECK(y.requires_grad(), "gradcheck: the function's result depends on none of its inputs");

  // A random cotangent reduces the result to one number, so that two evaluations per element are
  // enough. The fixed seed makes failures repeatable.
  const at::Tensor dy = randn(y.sizes(), 1, y.data().options()).data();
  const auto value = [&] { return (fn(x).data() * dy).sum().item<double>(); };
  const double once = value(), again = value();
  LATHE_CHECK(once == again || (std::isnan(once) && std::isnan(again)),
              "gradcheck: the function returned ", once, " and then ", again,
              " for the same inputs; make its random numbers the same in each call");

  // The rounding error of a sum is about 1e-16 times its terms. Central differences divide this
  // error by the step. Allow 100 times as much, for sums inside fn.
  const double lost = 1e-14 / options.step * (y.data() * dy).abs().sum().item<double>();
  const auto grads = grad(y, asked, Variable(dy));

  size_t next = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    // Skip the inputs that are not in `asked`: `grads` has one member for each of `asked`.
    if (!inputs[i].defined() || !inputs[i].data().is_floating_point()) continue;
    const at::Tensor &t = x[i].data(), &g = grads[next++].data();
    LATHE_CHECK(!g.defined() || g.sizes() == t.sizes(), "gradcheck: input ", i,
                ": the gradient of ", describe(t), " is ", describe(g));

    const at::Tensor ours = (g.defined() ? g.to(at::kCPU) : at::zeros_like(t, at::kCPU))
                                .reshape({-1})
                                .contiguous();  // expanded gradients have stride 0

    at::Tensor differences = at::zeros_like(ours);
    for (int64_t k = 0; k < t.numel(); ++k) {
      const at::Tensor element = t.view({-1}).select(0, k);
      const double at = element.item<double>(), step = options.step * std::max(1.0, std::abs(at));
      // `element` is a view of the input, so fn sees the step.
      element.fill_(at + step);
      const double above = value();
      element.fill_(at - step);
      const double below = value();
      element.fill_(at);
      differences.mutable_data_ptr<double>()[k] = (above - below) / (2 * step);
    }

    const auto *a = ours.const_data_ptr<double>(), *d = differences.const_data_ptr<double>();
    const double largest = t.numel() > 0 ? differences.abs().max().item<double>() : 0;
    const double allowed = options.tolerance * largest + lost;
    for (int64_t k = 0; k < t.numel(); ++k) {
      LATHE_CHECK(std::abs(a[k] - d[k]) <= allowed, "gradcheck: input ", i, ", element ",
                  place_of(k, t.sizes()), ": backward gives ", a[k], ", central differences ", d[k],
                  g.defined() ? "" : " (there is no gradient)");
    }
  }
}

void gradcheck(const std::function<Variable(const Variable&)>& fn, const Variable& input,
               const GradcheckOptions& options) {
  gradcheck([&](const std::vector<Variable>& x) { return fn(x[0]); }, {input}, options);
}

}  // namespace lathe
