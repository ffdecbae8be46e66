// Convolutions. Shapes: B batch, C channels, L length, H height, W width.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// A layer that holds filters and applies conv2d(): x [B, in, H, W] -> [B, out, H', W'].
struct Conv2d {
  /// weight [out, in / groups, kernel.h, kernel.w]; bias [out], undefined if there is none
  Variable weight, bias;
  Conv2dOptions options;

  Conv2d() = default;
  /// `options.groups` must divide both numbers of channels.
  Conv2d(int64_t in, int64_t out, Pair kernel, const Conv2dOptions& options = {},
         bool with_bias = true);
  Variable operator()(const Variable& x_BCHW) const;
  void visit(Visit& v) {
    v("weight", weight, Role::filter);
    v("bias", bias, Role::bias);
  }
};

/// A layer that holds filters and applies conv1d(): x [B, in, L] -> [B, out, L'].
struct Conv1d {
  Variable weight, bias;  ///< [out, in / groups, kernel]; [out], undefined if there is none
  Conv1dOptions options;

  Conv1d() = default;
  Conv1d(int64_t in, int64_t out, int64_t kernel, const Conv1dOptions& options = {},
         bool with_bias = true);
  Variable operator()(const Variable& x_BCL) const;
  void visit(Visit& v) {
    v("weight", weight, Role::filter);
    v("bias", bias, Role::bias);
  }
};

}  // namespace lathe
