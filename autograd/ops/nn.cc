// Ops of neural networks. Layer norm and embedding are fused: no second derivatives.
#include <ATen/Parallel.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <cmath>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/dropout.h"

namespace lathe {
namespace {

struct LayerNormOp {
  static constexpr OpInfo info{.name = "layer_norm", .amp = Amp::fp32};
  double eps;
  Saved x{}, weight{}, bias{}, mean{}, rstd{};

  static std::optional<at::Tensor> optional(const at::Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  }

  // y = (x - mean) * rstd * weight + bias, mean and variance over the last dim
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias_) {
    const int64_t c = x_.size(-1);
    for (const auto& p : {weight_, bias_}) {
      LATHE_CHECK(!p.defined() || (p.dim() == 1 && p.size(0) == c), "weight and bias must have shape [", c, "]");
    }
    auto [y, m, r] =
        at::native_layer_norm(x = x_.contiguous(), c, optional(weight = weight_), optional(bias = bias_), eps);
    mean = m;
    rstd = r;
    return y;
  }
  // g = dy * weight, h = (x - mean) * rstd:  dx = rstd * (g - avg(g) - h * avg(g * h)), dweight = sum(dy * h),
  // dbias = sum(dy)
  Grads<3> backward(const at::Tensor& dy, Needs<3> needs) const {
    auto [dx, dw, db] =
        at::native_layer_norm_backward(dy.contiguous(), x.data(), x.data().size(-1), mean.data(), rstd.data(),
                                       optional(weight.data()), optional(bias.data()), {needs[0], needs[1], needs[2]});
    return {dx, dw, db};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
    return flops_each(x, 8, 14);
  }
};

struct EmbeddingOp {
  static constexpr OpInfo info{.name = "embedding"};
  Saved ids;
  at::ScalarType out = at::kFloat;
  int64_t rows = 0;

  at::Tensor forward(const at::Tensor& weight) {
    LATHE_CHECK(weight.dim() == 2, "weight must be [V, C]");
    LATHE_CHECK(ids.data().scalar_type() == at::kLong, "ids must be int64, not ", describe(ids.data()));
    rows = weight.size(0);
    return at::embedding(weight, ids.data()).to(out);
  }
  // dweight[id] += dy at each place of the id, in float32 or wider
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    const at::Tensor wide = dy.scalar_type() == at::kDouble ? dy : dy.to(at::kFloat);
    return {at::embedding_dense_backward(wide, ids.data(), rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 0, 1); }
};

struct Dropout {
  static constexpr OpInfo info{.name = "dropout"};
  DropoutMask mask;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = x.contiguous();
    at::Tensor y = at::empty_like(in);
    if (in.is_cuda()) {
      cuda_api().dropout(in.const_data_ptr(), y.mutable_data_ptr(), in.numel(), element_of(in.scalar_type()), mask);
      return y;
    }
    at::parallel_for(0, in.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      dropout_cpu(in.const_data_ptr(), y.mutable_data_ptr(), begin, end, element_of(in.scalar_type()), mask);
    });
    mutated(y);
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
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

}  // namespace

Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps) {
  return apply(LayerNormOp{.eps = eps}, x, weight, bias);
}

Variable embedding(const at::Tensor& ids, const Variable& weight) {
  EmbeddingOp op;
  op.ids = ids;
  // Under autocast rows of a low-precision weight begin a float32 residual stream.
  const bool widen = mode().compute != at::kFloat && weight.dtype() != at::kDouble;
  op.out = widen ? at::kFloat : weight.dtype();
  return apply(std::move(op), weight);
}

Variable dropout(const Variable& x, double p, uint64_t stream) {
  LATHE_CHECK(p >= 0 && p < 1, "dropout: p = ", p, " is outside [0, 1)");
  const auto& random = mode().random;
  if (p == 0 || !random) return x;
  LATHE_CHECK(x.dim() >= 1 && x.size(0) > 0, "dropout(", describe(x.data()), "): dim 0 must be the batch");
  const int64_t row = x.numel() / x.size(0);
  return apply(Dropout{{.key = make_key(random->seed, stream),
                        .step = random->step,
                        .first = static_cast<uint64_t>(random->first_sample * row),
                        .threshold = static_cast<uint32_t>(std::llround(p * 0x1p32)),
                        .scale = static_cast<float>(1 / (1 - p))}},
               x);
}

}  // namespace lathe
