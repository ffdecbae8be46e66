// Pooling. Shapes: B batch, C channels, L length, H height, W width. These layers have no
// parameters.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// Applies max_pool2d(): x [B, C, H, W] -> [B, C, H', W'].
struct MaxPool2d {
  Pair kernel;
  std::optional<Pair> stride = std::nullopt;  ///< by default windows are adjacent
  Pair padding = 0, dilation = 1;
  bool ceil_mode = false;  ///< allow a last window that extends beyond the padding
  Variable operator()(const Variable& x_BCHW) const;
};
/// Applies avg_pool2d(): x [B, C, H, W] -> [B, C, H', W'].
struct AvgPool2d {
  Pair kernel;
  std::optional<Pair> stride = std::nullopt;
  Pair padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< padding zeros count in the mean
  Variable operator()(const Variable& x_BCHW) const;
};
/// Applies adaptive_avg_pool2d(): the result has size `out` for any size of the input.
struct AdaptiveAvgPool2d {
  Pair out;
  Variable operator()(const Variable& x_BCHW) const;
};

/// Applies max_pool1d(): x [B, C, L] -> [B, C, L'].
struct MaxPool1d {
  int64_t kernel;
  std::optional<int64_t> stride = std::nullopt;
  int64_t padding = 0, dilation = 1;
  bool ceil_mode = false;
  Variable operator()(const Variable& x_BCL) const;
};
/// Applies avg_pool1d(): x [B, C, L] -> [B, C, L'].
struct AvgPool1d {
  int64_t kernel;
  std::optional<int64_t> stride = std::nullopt;
  int64_t padding = 0;
  bool ceil_mode = false, count_include_pad = true;
  Variable operator()(const Variable& x_BCL) const;
};
/// Applies adaptive_avg_pool1d(): the result has length `out` for any length of the input.
struct AdaptiveAvgPool1d {
  int64_t out;
  Variable operator()(const Variable& x_BCL) const;
};

}  // namespace lathe
