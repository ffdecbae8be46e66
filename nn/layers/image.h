// Layers of images, and batch norm. Shapes: B batch, C channels, H height, W width.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// conv2d() with its filters. x [B, in, H, W] -> [B, out, H', W'].
struct Conv2d {
  Variable weight, bias;  ///< [out, in / groups, kernel.h, kernel.w]; [out] or undefined
  Conv2dOptions options;

  Conv2d() = default;
  /// `options.groups` must divide both numbers of channels.
  Conv2d(int64_t in, int64_t out, Pair kernel, const Conv2dOptions& options = {}, bool with_bias = true);
  Variable operator()(const Variable& x_BCHW) const;
  void visit(Visit& v) {
    v("weight", weight, Role::filter);
    v("bias", bias, Role::bias);
  }
};

/// What BatchNorm1d and BatchNorm2d share. In training it takes the batch's statistics, which need two values a
/// channel, and moves the running ones `momentum` of the way to them, the variance unbiased, as torch does; each
/// micro-batch of a step does. A forward that is computed again (DrawAgain) moves nothing. Outside training it takes
/// the running ones.
struct BatchNorm {
  Variable weight, bias;                 ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], buffers
  at::Tensor num_batches_tracked;        ///< int64 [], a buffer: how often the running ones were moved
  double momentum = 0.1, eps = 1e-5;

  BatchNorm() = default;
  explicit BatchNorm(int64_t channels, double momentum = 0.1, double eps = 1e-5);
  void visit(Visit& v);

 protected:
  /// Under autocast the result has the dtype that products take, for what goes to a layer next; float32 where `wide`.
  Variable normalise(const Variable& x, bool wide) const;
};

struct BatchNorm1d : BatchNorm {
  using BatchNorm::BatchNorm;
  /// x [B, C] or [B, C, L]. `wide`: float32 under autocast too, where it goes on to a residual stream.
  Variable operator()(const Variable& x, bool wide = false) const;
};
struct BatchNorm2d : BatchNorm {
  using BatchNorm::BatchNorm;
  Variable operator()(const Variable& x_BCHW, bool wide = false) const;
};

}  // namespace lathe
