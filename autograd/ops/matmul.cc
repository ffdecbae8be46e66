// Matrix products: where the FLOPs are.
#include <ATen/ops/addmm.h>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/quantised.h"

namespace lathe {
namespace {

/// Whether a float16 product is taken in float32 and rounded once: on CPUs without float16 arithmetic ATen's own is up
/// to 90 times slower (2 cores of a Zen 4, [768, 512] x [512, 512]: 11 to 177 ms against 2).
bool widened(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kHalf && cpu_product_dtype(at::kHalf) == at::kFloat;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return widened(a) ? a.to(at::kFloat).matmul(b.to(at::kFloat)).to(at::kHalf) : a.matmul(b);
}
Variable product(const Variable& a, const Variable& b) { return a.matmul(b); }

/// Of a product's backward, which is one product for each factor that needs its gradient.
template <size_t N>
Flops for_needed(Flops both, Needs<N> needs) {
  both.matmul *= ((needs[0] ? 1 : 0) + (needs[1] ? 1 : 0)) / 2.0;
  return both;
}

struct Matmul {
  static constexpr OpInfo info{.name = "matmul", .amp = Amp::low};
  Saved a{}, b{};

  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    LATHE_CHECK(a_.dim() >= 2 && b_.dim() >= 2, "both need at least 2 dims");
    LATHE_CHECK(a_.size(-1) == b_.size(-2), "the inner sizes ", a_.size(-1), " and ", b_.size(-2), " differ");
    return product(a = a_, b = b_);
  }
  // da = dy b^T, db = a^T dy; the engine sums broadcast batch dims
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? product(dy, b.as<T>().transpose(-2, -1)) : T(),
            needs[1] ? product(a.as<T>().transpose(-2, -1), dy) : T()};
  }
  static OpFlops flops(const at::Tensor& a, const at::Tensor&, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(a.size(-1));
    return {.forward = {.matmul = forward}, .backward = {.matmul = 2 * forward}};
  }
  static Flops needed(Flops both, Needs<2> needs) { return for_needed(both, needs); }
};

struct LinearOp {
  static constexpr OpInfo info{.name = "linear", .amp = Amp::low};
  Saved x{}, weight{};

  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    LATHE_CHECK(weight_.dim() == 2 && x_.dim() >= 1 && x_.size(-1) == weight_.size(1), "the last dim of x must be ",
                weight_.size(weight_.dim() - 1));
    x = x_;
    weight = weight_;
    const at::Tensor rows = x_.reshape({-1, x_.size(-1)});
    at::Tensor y = !bias.defined() ? product(rows, weight_.t())
                   : widened(x_)
                       ? at::addmm(bias.to(at::kFloat), rows.to(at::kFloat), weight_.t().to(at::kFloat)).to(at::kHalf)
                       : at::addmm(bias, rows, weight_.t());
    if (x_.dim() == 2) return y;
    auto sizes = x_.sizes().vec();
    sizes.back() = weight_.size(0);
    return y.view(sizes);
  }
  // dx = dy W, dW = dy^T x, db = sum of dy over the rows
  template <class T>
  Grads<3, T> backward(const T& dy, Needs<3> needs) const {
    const T w = weight.as<T>(), in = x.as<T>();
    const int64_t out_size = w.size(0), in_size = w.size(1);
    const T dy_rows = dy.reshape({-1, out_size});
    return {needs[0] ? product(dy_rows, w).reshape(in.sizes()) : T(),
            needs[1] ? product(dy_rows.transpose(0, 1), in.reshape({-1, in_size})) : T(),
            needs[2] ? dy_rows.sum(0) : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(x.size(-1));
    const double add = bias.defined() ? static_cast<double>(y.numel()) : 0;
    return {.forward = {forward, add}, .backward = {2 * forward, add}};
  }
  static Flops needed(Flops both, Needs<3> needs) { return for_needed(both, needs); }
};

// Linear with a frozen weight in few bits, which is taken back to x's dtype for each product. No second derivatives.
struct LinearQuantised {
  static constexpr OpInfo info{.name = "linear_quantised", .amp = Amp::low};
  std::shared_ptr<const QuantisedTensor> weight;

  // y = x W^T + b
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
    LATHE_CHECK(x.dim() >= 1 && x.size(-1) == weight->sizes()[1], "the last dim of x must be ", weight->sizes()[1]);
    return LinearOp{}.forward(x, weight->dequantise(x.scalar_type()), bias);
  }
  // dx = dy W, db = sum of dy over the rows
  Grads<2> backward(const at::Tensor& dy, Needs<2> needs) const {
    const at::Tensor rows = dy.reshape({-1, dy.size(-1)});
    auto sizes = dy.sizes().vec();
    sizes.back() = weight->sizes()[1];
    return {needs[0] ? product(rows, weight->dequantise(dy.scalar_type())).view(sizes) : at::Tensor(),
            needs[1] ? rows.sum(0) : at::Tensor()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& y) {
    OpFlops f = LinearOp::flops(x, {}, bias, y);
    f.backward.matmul /= 2;  // none for the weight
    return f;
  }
};

// Linear in fp8: q(t) is t scaled and rounded to fp8. No second derivatives.
struct LinearFp8 {
  static constexpr OpInfo info{.name = "linear_fp8"};
  std::shared_ptr<const Fp8Scaling> scaling;
  at::ScalarType out, weight_grad;  // dtypes of y and dx, and of dweight
  Saved x{}, weight{};
  at::Tensor x_factor{}, weight_factor{};

  // y = q(x) q(W)^T + b
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    LATHE_CHECK(weight_.dim() == 2 && x_.dim() >= 1 && x_.size(-1) == weight_.size(1), "the last dim of x must be ",
                weight_.size(weight_.dim() - 1));
    const at::Tensor rows = x_.reshape({-1, x_.size(-1)});
    const Fp8Tensor qx = to_fp8(rows, scaling->largest(Fp8Scaling::input, rows), at::kFloat8_e4m3fn);
    const Fp8Tensor qw = to_fp8(weight_, scaling->largest(Fp8Scaling::weight, weight_), at::kFloat8_e4m3fn);
    auto sizes = x_.sizes().vec();
    sizes.back() = weight_.size(0);
    const at::Tensor y = fp8_matmul_nt(qx, qw, bias, out).view(sizes);
    x = qx.data, x_factor = qx.factor;
    weight = qw.data, weight_factor = qw.factor;
    return y;
  }
  // dx = q(dy) q(W), dW = q(dy)^T q(x), db = sum of dy over the rows
  Grads<3> backward(const at::Tensor& dy, Needs<3> needs) const {
    const at::Tensor rows = dy.reshape({-1, dy.size(-1)});
    const Fp8Tensor g = to_fp8(rows, scaling->largest(Fp8Scaling::gradient, rows), at::kFloat8_e5m2);
    auto sizes = dy.sizes().vec();
    sizes.back() = x.data().size(1);
    return {needs[0] ? fp8_matmul_nt(g, {weight.data().t(), weight_factor}, {}, out).view(sizes) : at::Tensor(),
            needs[1] ? fp8_matmul_nt({g.data.t(), g.factor}, {x.data().t(), x_factor}, {}, weight_grad) : at::Tensor(),
            needs[2] ? rows.sum(0, /*keepdim=*/false, at::kFloat) : at::Tensor()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& y) {
    return LinearOp::flops(x, weight, bias, y);
  }
  static Flops needed(Flops both, Needs<3> needs) { return for_needed(both, needs); }
};

}  // namespace

at::ScalarType cpu_product_dtype(at::ScalarType dtype) {
#ifdef __x86_64__
  static const bool has_float16 = __builtin_cpu_supports("avx512fp16");
#else
  constexpr bool has_float16 = true;
#endif
  const bool wide = dtype == at::kFloat8_e4m3fn || (dtype == at::kHalf && !has_float16);
  return wide ? at::kFloat : dtype;
}

Variable matmul(const Variable& a, const Variable& b) { return apply(Matmul{}, a, b); }
Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  if (const auto* leaf = dynamic_cast<const Leaf*>(weight.node().get())) {
    if (leaf->quantised) return apply(LinearQuantised{leaf->quantised}, x, bias);
    if (leaf->fp8 && mode().fp8) {
      return apply(LinearFp8{.scaling = leaf->fp8, .out = mode().compute, .weight_grad = leaf->grad_dtype}, x, weight,
                   bias);
    }
  }
  return apply(LinearOp{}, x, weight, bias);
}

}  // namespace lathe
