// Dropout, whose mask depends on the seed, the step and the position in the global batch.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/formula.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/dropout.h"
#include "core/parallel.h"

namespace lathe {
namespace {

struct Dropout {
  static constexpr OpInfo info{.name = "dropout"};
  DropoutMask mask;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = x.contiguous();
    at::Tensor y = at::empty_like(in);
    if (in.is_cuda()) {
      cuda_api().dropout(in.const_data_ptr(), y.mutable_data_ptr(), in.numel(),
                         element_of(in.scalar_type()), mask);
      return y;
    }
    parallel_for(0, in.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      dropout_cpu(in.const_data_ptr(), y.mutable_data_ptr(), begin, end,
                  element_of(in.scalar_type()), mask);
    });
    bump_version(y);
    return y;
  }
  // dx = dy under the same mask
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      return {Dropout{mask}.forward(dy)};
    } else {
      return {apply(Dropout{mask}, dy)};
    }
  }
};

}  // namespace

Variable dropout(const Variable& x, double p, uint64_t stream) {
  require_defined("dropout", {&x});
  LATHE_CHECK(p >= 0 && p < 1, "dropout: p = ", p, " is outside [0, 1)");
  if (p == 0 || !is_training()) return x;
  const auto& random = mode().random;
  LATHE_CHECK(random,
              "dropout: no random numbers; make a TrainingStep or Training first (core/mode.h)");
  LATHE_CHECK(x.dim() >= 1 && x.size(0) > 0, "dropout(", describe(x.data()),
              "): needs dim 0, the batch, with at least one element");
  const int64_t row = x.numel() / x.size(0);
  const uint64_t use = (*mode().uses)[stream]++;
  return apply(
      Dropout{{.key = make_key(random->seed, stream + use * 0x9e3779b97f4a7c15u),
               .step = random->step,
               .first = static_cast<uint64_t>(random->first_sample * row),
               .threshold = static_cast<uint32_t>(std::min(std::llround(p * 0x1p32), 0xffffffffLL)),
               .scale = static_cast<float>(1 / (1 - p))}},
      x);
}

}  // namespace lathe
