#include "train/run/gradient_sum.h"

#include <ATen/TensorOperators.h>

#include "autograd/node.h"

namespace lathe {
namespace {

/// Adds `later` to `earlier` in place. An undefined gradient is no summand.
std::vector<at::Tensor> plus(std::vector<at::Tensor> earlier, std::vector<at::Tensor> later) {
  for (size_t i = 0; i < earlier.size(); ++i) {
    if (!earlier[i].defined())
      earlier[i] = std::move(later[i]);
    else if (later[i].defined())
      earlier[i].add_(later[i]);
    later[i].reset();
  }
  return earlier;
}

}  // namespace

void GradientSum::begin(int64_t n) {
  if (n > 0 && n % 2 == 0) pairs_.add(take(), plus);
}

void GradientSum::finish() {
  if (pairs_.empty()) return;
  // The last pair may be a single micro-batch: it is the smallest block, so it is added first.
  pairs_.add(take(), plus);
  const Gradients sum = pairs_.finish(plus);
  for (size_t i = 0; i < sum.size(); ++i) parameters_[i].parameter.leaf().grad = sum[i];
}

GradientSum::Gradients GradientSum::take() {
  Gradients taken;
  for (const auto& p : parameters_)
    taken.push_back(std::exchange(p.parameter.leaf().grad, at::Tensor()));
  return taken;
}

}  // namespace lathe
