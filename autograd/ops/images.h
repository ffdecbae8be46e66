// Declares convolutions, pools, resizing and norms of sequences [B, C, L] and images [B, C, H, W]
// that ops.h does not have. Their names and results are PyTorch's.
#pragma once

#include <optional>
#include <vector>

#include "autograd/ops/pair.h"
#include "autograd/variable.h"

namespace lathe {

// Convolutions and pools in other forms (ops/conv_forms.cc).
struct Conv1dOptions {
  int64_t stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;  ///< groups of channels, each of which sees only its own inputs
};
/// Computes the cross-correlation: x [B, C, L], weight [O, C / groups, k], bias [O] or undefined ->
/// [B, O, L'].
Variable conv1d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv1dOptions& options = {});
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0;
  Pair output_padding = 0;  ///< extra positions at the bottom and right: selects one of the image
                            ///< sizes that conv2d maps to the size of x
  int64_t groups = 1;
  Pair dilation = 1;
};
/// Computes the adjoint of conv2d with respect to its input, plus the bias: x [B, C, H, W], weight
/// [C, O / groups, kh, kw], bias [O] or undefined -> [B, O, H', W'], where H' = (H - 1) stride - 2
/// padding + dilation (kh - 1) + output_padding + 1. An output_padding must be below the stride or
/// the dilation.
Variable conv_transpose2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                          const ConvTranspose2dOptions& options = {});
/// Pool sequences: x [B, C, L] -> [B, C, L']. The functions apply the 2-D functions of ops.h to
/// images of one row. By default, the stride is the kernel's size.
Variable max_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride = std::nullopt,
                    int64_t padding = 0, int64_t dilation = 1, bool ceil_mode = false);
Variable avg_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride = std::nullopt,
                    int64_t padding = 0, bool ceil_mode = false, bool count_include_pad = true);
Variable adaptive_avg_pool1d(const Variable& x, int64_t out);

// Patches (ops/patches.cc).
/// Returns each window of an image as a column: [B, C, H, W] -> [B, C kh kw, windows]. This is
/// torch.nn.functional.unfold.
Variable im2col(const Variable& x, Pair kernel, Pair dilation = 1, Pair padding = 0,
                Pair stride = 1);
/// Computes the adjoint of im2col: [B, C kh kw, windows] -> [B, C, size.h, size.w]. Where windows
/// overlap, their values are added. This is torch.nn.functional.fold.
Variable col2im(const Variable& x, Pair size, Pair kernel, Pair dilation = 1, Pair padding = 0,
                Pair stride = 1);

// Resizing (ops/interpolate.cc).
enum class Interpolation { nearest, bilinear };
/// Resizes x [B, C, H, W] to [B, C, size.h, size.w], or x [B, C, L] to [B, C, size.w], for which
/// bilinear is PyTorch's "linear". Nearest: position i takes the value at floor(i H / H').
/// Bilinear: positions are the centers of pixels. With align_corners, the centers of the corner
/// pixels of x and of the result coincide. Throws if x or the result is empty in the resized dims.
Variable interpolate(const Variable& x, Pair size, Interpolation mode = Interpolation::nearest,
                     bool align_corners = false);
/// Resizes x [B, C, H, W] to floor(H scale_h) x floor(W scale_w), or x [B, C, L] to floor(L
/// scale_w). Positions are computed with the given scales, as PyTorch does without
/// recompute_scale_factor.
Variable interpolate_by(const Variable& x, double scale_h, double scale_w,
                        Interpolation mode = Interpolation::nearest, bool align_corners = false);

// Norms (ops/group_norm.cc). They compute in float32 or wider; the result's dtype is chosen as for
// layer_norm.
/// Divides the channels of x [B, C, ...] into `groups` groups, and normalizes each group in each
/// sample. Weight and bias are [C]; either may be undefined. Throws if a group has only one value.
/// Wu and He 2018.
Variable group_norm(const Variable& x, int64_t groups, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5,
                    std::optional<at::ScalarType> out = std::nullopt);
/// Normalizes each channel of each sample of x [B, C, L], [B, C, H, W] or more dims. Ulyanov,
/// Vedaldi and Lempitsky 2016.
Variable instance_norm(const Variable& x, const Variable& weight = {}, const Variable& bias = {},
                       double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);

}  // namespace lathe
