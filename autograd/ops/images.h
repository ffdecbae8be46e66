// Convolutions, pools, sizes and norms of sequences [B, C, L] and images [B, C, H, W] beside those
// of ops.h, with PyTorch's names and values.
#pragma once

#include <optional>
#include <vector>

#include "autograd/ops/pair.h"
#include "autograd/variable.h"

namespace lathe {

// Convolutions and pools in other forms (ops/conv_forms.cc).
struct Conv1dOptions {
  int64_t stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;  ///< of channels, each seeing its own inputs alone
};
/// Cross-correlation: x [B, C, L], weight [O, C / groups, k], bias [O] or undefined -> [B, O, L'].
Variable conv1d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv1dOptions& options = {});
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0;
  Pair output_padding = 0;  ///< further places at the far ends: which of the sizes that conv2d
                            ///< would map to x's it was
  int64_t groups = 1;
  Pair dilation = 1;
};
/// conv2d's adjoint in its input: x [B, C, H, W], weight [C, O / groups, kh, kw], bias [O] or
/// undefined -> [B, O, H', W'], where H' = (H - 1) stride - 2 padding + dilation (kh - 1) +
/// output_padding + 1.
Variable conv_transpose2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                          const ConvTranspose2dOptions& options = {});
Variable max_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride = std::nullopt,
                    int64_t padding = 0, int64_t dilation = 1, bool ceil_mode = false);
Variable avg_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride = std::nullopt,
                    int64_t padding = 0, bool ceil_mode = false, bool count_include_pad = true);
Variable adaptive_avg_pool1d(const Variable& x, int64_t out);

// Patches (ops/patches.cc).
/// Each window of an image as a column: [B, C, H, W] -> [B, C kh kw, windows].
/// torch.nn.functional.unfold.
Variable im2col(const Variable& x, Pair kernel, Pair dilation = 1, Pair padding = 0,
                Pair stride = 1);
/// Its adjoint, for an image of H = size.h, W = size.w: what overlaps adds up.
/// torch.nn.functional.fold.
Variable col2im(const Variable& x, Pair size, Pair kernel, Pair dilation = 1, Pair padding = 0,
                Pair stride = 1);

// Sizes (ops/interpolate.cc).
enum class Interpolation { nearest, bilinear };
/// To another size: [B, C, H, W], or [B, C, L], where the one number is L's and bilinear is
/// PyTorch's "linear". Nearest: place i takes floor(i H / H'). Bilinear: places are the pixels'
/// middles, or, with align_corners, the corner pixels' middles stay.
Variable interpolate(const Variable& x, Pair size, Interpolation mode = Interpolation::nearest,
                     bool align_corners = false);
/// To floor(H scale), floor(W scale); places are found by the scales given, as PyTorch does without
/// recompute_scale_factor.
Variable interpolate_by(const Variable& x, double scale_h, double scale_w,
                        Interpolation mode = Interpolation::nearest, bool align_corners = false);

// Norms (ops/group_norm.cc). In float32 or wider; the result's dtype is as layer_norm's.
/// Over each of `groups` parts of the channels of each sample: x [B, C, ...], weight and bias [C],
/// either may be undefined. Wu and He 2018.
Variable group_norm(const Variable& x, int64_t groups, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5,
                    std::optional<at::ScalarType> out = std::nullopt);
/// Over each channel of each sample: a group for each. Ulyanov, Vedaldi and Lempitsky 2016.
Variable instance_norm(const Variable& x, const Variable& weight = {}, const Variable& bias = {},
                       double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);

}  // namespace lathe
