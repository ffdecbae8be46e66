// Losses. In float32 or wider whatever the logits are.
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"

namespace lathe {
namespace {

// Shapes: N rows, V classes.
struct CrossEntropy {
  static constexpr OpInfo info{.name = "cross_entropy", .amp = Amp::fp32};
  at::Tensor targets_N;
  double divisor;
  int64_t ignore_index;
  Saved log_p{};
  at::Tensor index_N1{}, weight_N1{};  // each row's class (0 where ignored), and 1 / divisor (0 where ignored)

  // loss = -sum over counted rows of log softmax(logits)[target] / divisor
  at::Tensor forward(const at::Tensor& logits_NV) {
    LATHE_CHECK(logits_NV.dim() == 2 && targets_N.dim() == 1 && logits_NV.size(0) == targets_N.size(0),
                "needs logits [N, V] and targets [N], not targets ", describe(targets_N));
    const at::ScalarType wide = logits_NV.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor counted = targets_N.ne(ignore_index).unsqueeze(1);
    index_N1 = targets_N.unsqueeze(1).masked_fill(counted.logical_not(), 0);
    const double by = divisor > 0 ? divisor : counted.sum().item<double>();
    weight_N1 = counted.to(wide).mul_(by > 0 ? 1 / by : 0.0);
    log_p = logits_NV.log_softmax(1, wide);
    return log_p.data().gather(1, index_N1).mul_(weight_N1).sum().neg_();
  }
  // dlogits = (softmax(logits) - onehot(target)) * dy / divisor
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    at::Tensor dx = log_p.data().exp();
    dx.scatter_add_(1, index_N1, dx.new_full(index_N1.sizes(), -1.0));
    return {dx.mul_(weight_N1 * dy)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 5, 2); }
};

}  // namespace

Variable cross_entropy(const Variable& logits_NV, const at::Tensor& targets_N, double divisor, int64_t ignore_index) {
  return apply(CrossEntropy{.targets_N = targets_N, .divisor = divisor, .ignore_index = ignore_index}, logits_NV);
}

Variable mse_loss(const Variable& a, const Variable& b) {
  const auto wide = [](const Variable& x) {
    return x.dtype() == at::kHalf || x.dtype() == at::kBFloat16 ? cast(x, at::kFloat) : x;
  };
  const Variable d = sub(wide(a), wide(b));
  return mean(mul(d, d));
}

}  // namespace lathe
