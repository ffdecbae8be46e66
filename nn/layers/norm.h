// Norms. Shapes: B batch, C channels, G groups of channels, L places, H height, W width.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// layer_norm() over the last dim. Ba, Kiros and Hinton 2016.
struct LayerNorm {
  Variable weight, bias;  ///< [C]; bias may be undefined
  double eps = 1e-5;

  LayerNorm() = default;
  LayerNorm(int64_t channels, bool with_bias);
  /// In the dtype that products take it in, for what goes to a linear layer; `wide`: float32 under
  /// autocast too, for what goes on to a residual stream.
  Variable operator()(const Variable& x, bool wide = false) const;
  void visit(Visit& v) {
    v("weight", weight, Role::scale);
    v("bias", bias, Role::bias);
  }
};

/// rms_norm() over the last dim. Zhang and Sennrich 2019.
struct RMSNorm {
  Variable weight;  ///< [C]
  double eps = 1e-5;

  RMSNorm() = default;
  explicit RMSNorm(int64_t channels, double eps = 1e-5);
  /// As LayerNorm's.
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) { v("weight", weight, Role::scale); }
};

/// Each group of channels of a sample, with all its places, by its own mean and variance; then a
/// scale and a shift a channel. Wu and He 2018. x [B, C, ...]. In float32 or wider, the result in
/// the dtype that products take.
struct GroupNorm {
  Variable weight, bias;  ///< [C]; undefined: no scale and shift
  int64_t groups = 1, channels = 0;
  double eps = 1e-5;

  GroupNorm() = default;
  /// `groups` must divide `channels`.
  GroupNorm(int64_t groups, int64_t channels, double eps = 1e-5, bool affine = true);
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) {
    v("weight", weight, Role::scale);
    v("bias", bias, Role::bias);
  }

 protected:
  /// The norm of x [B, C, ...], whatever its dims.
  Variable normalise(const Variable& x) const;
};

/// GroupNorm of groups of one channel, by default without scale and shift, as torch's. Ulyanov et
/// al. 2016. Without running statistics.
struct InstanceNorm1d : GroupNorm {
  InstanceNorm1d() = default;
  explicit InstanceNorm1d(int64_t channels, double eps = 1e-5, bool affine = false)
      : GroupNorm(channels, channels, eps, affine) {}
  Variable operator()(const Variable& x_BCL) const;
};
/// The same of images.
struct InstanceNorm2d : GroupNorm {
  InstanceNorm2d() = default;
  explicit InstanceNorm2d(int64_t channels, double eps = 1e-5, bool affine = false)
      : GroupNorm(channels, channels, eps, affine) {}
  Variable operator()(const Variable& x_BCHW) const;
};

/// What BatchNorm1d and BatchNorm2d share. In training it takes the batch's statistics, which need
/// two values a channel, and moves the running ones `momentum` of the way to them, the variance
/// unbiased, as torch does; each micro-batch of a step does. A forward that is computed again
/// (RestoreRngState) moves nothing. Outside training it takes the running ones.
struct BatchNorm {
  Variable weight, bias;                 ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], buffers
  at::Tensor num_batches_tracked;  ///< int64 [], a buffer: how often the running ones were moved
  double momentum = 0.1, eps = 1e-5;

  BatchNorm() = default;
  explicit BatchNorm(int64_t channels, double momentum = 0.1, double eps = 1e-5);
  void visit(Visit& v);

 protected:
  /// Under autocast the result has the dtype that products take, for what goes to a layer next;
  /// float32 where `wide`.
  Variable normalise(const Variable& x, bool wide) const;
};

/// BatchNorm of features or sequences. torch.nn.BatchNorm1d.
struct BatchNorm1d : BatchNorm {
  using BatchNorm::BatchNorm;
  /// x [B, C] or [B, C, L]. `wide`: float32 under autocast too, where it goes on to a residual
  /// stream.
  Variable operator()(const Variable& x, bool wide = false) const;
};
/// BatchNorm of images. torch.nn.BatchNorm2d.
struct BatchNorm2d : BatchNorm {
  using BatchNorm::BatchNorm;
  Variable operator()(const Variable& x_BCHW, bool wide = false) const;
};

}  // namespace lathe
