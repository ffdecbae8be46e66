// Implements plain matrix products.
#include "autograd/ops/product.h"

namespace lathe {
namespace {

struct Matmul {
  static constexpr OpInfo info{.name = "matmul", .amp = Amp::low};
  Needs<2> needs{};
  Saved a = Saved::input(0), b = Saved::input(1);

  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    LATHE_CHECK(a_.dim() >= 2 && b_.dim() >= 2, "both need at least 2 dims");
    LATHE_CHECK(a_.size(-1) == b_.size(-2), "the inner sizes ", a_.size(-1), " and ", b_.size(-2),
                " differ");
    if (needs[1]) a = a_;
    if (needs[0]) b = b_;
    return product(a_, b_);
  }
  // da = dy b^T, db = a^T dy; the engine sums broadcast batch dims
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? product(dy, transpose(b.as<T>(), -2, -1)) : T(),
            needs[1] ? product(transpose(a.as<T>(), -2, -1), dy) : T()};
  }
  static OpFlops flops(const at::Tensor& a, const at::Tensor&, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(a.size(-1));
    return {.forward = {.matmul = forward}, .backward = {.matmul = 2 * forward}};
  }
  static Flops needed(Flops both, Needs<2> needs) { return needed_flops(both, needs); }
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

}  // namespace lathe
