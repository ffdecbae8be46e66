// Norms. Shapes: B batch, C channels, G groups of channels, L length, H height, W width.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// Applies layer_norm() over the last dim. Ba, Kiros and Hinton 2016.
struct LayerNorm {
  Variable weight, bias;  ///< [C]; bias is undefined if the norm has none
  double eps = 1e-5;

  LayerNorm() = default;
  LayerNorm(int64_t channels, bool with_bias);
  /// Returns the normalized values in the dtype of matrix products, for a linear layer that
  /// follows. With `wide`, returns float32 even under autocast, for a residual stream.
  Variable operator()(const Variable& x, bool wide = false) const;
  void visit(Visit& v) {
    v("weight", weight, Role::scale);
    v("bias", bias, Role::bias);
  }
};

/// Applies rms_norm() over the last dim. Zhang and Sennrich 2019.
struct RMSNorm {
  Variable weight;  ///< [C]
  double eps = 1e-5;

  RMSNorm() = default;
  explicit RMSNorm(int64_t channels, double eps = 1e-5);
  /// Returns the normalized values in the dtype of matrix products, like LayerNorm.
  Variable operator()(const Variable& x) const { return with_weight(x, weight); }
  /// Does the same with `other` as the weight, such as the result of an op on `weight`. Hooks of
  /// this layer are called as usual.
  Variable with_weight(const Variable& x, const Variable& other) const;
  void visit(Visit& v) { v("weight", weight, Role::scale); }
};

/// Normalizes each group of channels of a sample by the group's mean and variance over all
/// positions, and then scales and shifts each channel. Wu and He 2018. x [B, C, ...]. Computes in
/// float32 or wider; the result has the dtype of matrix products.
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
  /// Returns the normalized values of x [B, C, ...] with any number of dims.
  Variable normalize(const Variable& x) const;
};

/// GroupNorm with one channel per group. As in torch, the norm has no scale and shift by default.
/// It has no running statistics. Ulyanov et al. 2016.
struct InstanceNorm1d : GroupNorm {
  InstanceNorm1d() = default;
  explicit InstanceNorm1d(int64_t channels, double eps = 1e-5, bool affine = false)
      : GroupNorm(channels, channels, eps, affine) {}
  Variable operator()(const Variable& x_BCL) const;
};
/// InstanceNorm of images.
struct InstanceNorm2d : GroupNorm {
  InstanceNorm2d() = default;
  explicit InstanceNorm2d(int64_t channels, double eps = 1e-5, bool affine = false)
      : GroupNorm(channels, channels, eps, affine) {}
  Variable operator()(const Variable& x_BCHW) const;
};

/// The common part of BatchNorm1d and BatchNorm2d. In training, a BatchNorm uses the statistics of
/// the batch, which must have at least two values per channel. It also moves the running statistics
/// towards the batch's statistics by `momentum`, with the unbiased variance, as in torch. Each
/// micro-batch of a step updates the running statistics, but a recomputed forward pass
/// (Mode::is_recomputing) does not. Outside training, a BatchNorm uses the running statistics.
struct BatchNorm {
  Variable weight, bias;                 ///< [C]
  at::Tensor running_mean, running_var;  ///< [C], buffers
  at::Tensor
      num_batches_tracked;  ///< int64 [], a buffer: the number of updates of the running statistics
  double momentum = 0.1, eps = 1e-5;

  BatchNorm() = default;
  explicit BatchNorm(int64_t channels, double momentum = 0.1, double eps = 1e-5);
  void visit(Visit& v);

 protected:
  /// Returns the normalized values. Under autocast, they have the dtype of matrix products, for a
  /// layer that follows. With `wide`, they are float32.
  Variable normalize(const Variable& x, bool wide) const;
};

/// BatchNorm of features or sequences. torch.nn.BatchNorm1d.
struct BatchNorm1d : BatchNorm {
  using BatchNorm::BatchNorm;
  /// Returns the normalized values of x [B, C] or [B, C, L]. With `wide` the result is float32 even
  /// under autocast, for a residual stream.
  Variable operator()(const Variable& x, bool wide = false) const;
};
/// BatchNorm of images. torch.nn.BatchNorm2d.
struct BatchNorm2d : BatchNorm {
  using BatchNorm::BatchNorm;
  Variable operator()(const Variable& x_BCHW, bool wide = false) const;
};

}  // namespace lathe
