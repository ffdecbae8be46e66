// Implements convolutions and pools that call the ops of conv.cc and pool.cc: a sequence is an
// image of one row, and a transposed convolution is the adjoint of conv2d.
#include "autograd/ops/composed.h"
#include "autograd/ops/image.h"
#include "autograd/ops/images.h"
#include "autograd/ops/shapes.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool conv_forms_registered = register_composed(
    {"conv1d", "conv_transpose2d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d"});

Variable as_image(const Variable& x, const char* what) {
  LATHE_CHECK(x.dim() == 3, what, "(", describe(x.data()), "): x must be [B, C, L]");
  return unsqueeze(x, 2);
}
Variable as_sequence(const Variable& y) { return reshape(y, {y.size(0), y.size(1), y.size(3)}); }

}  // namespace

Variable conv1d(const Variable& x, const Variable& weight, const Variable& bias,
                const Conv1dOptions& o) {
  require_defined("conv1d", {&x, &weight});
  LATHE_CHECK(weight.dim() == 3, "conv1d: weight must be [O, C / groups, k], not ",
              describe(weight.data()));
  return as_sequence(conv2d(as_image(x, "conv1d"), unsqueeze(weight, 2), bias,
                            {.stride = {1, o.stride},
                             .padding = {0, o.padding},
                             .dilation = {1, o.dilation},
                             .groups = o.groups}));
}

Variable conv_transpose2d(const Variable& x, const Variable& weight, const Variable& bias,
                          const ConvTranspose2dOptions& o) {
  require_defined("conv_transpose2d", {&x, &weight});
  LATHE_CHECK(x.dim() == 4 && weight.dim() == 4, "conv_transpose2d(", describe(x.data()), ", ",
              describe(weight.data()),
              "): x must be [B, C, H, W] and weight [C, O / groups, kh, kw]");
  LATHE_CHECK(
      at_least(o.stride, 1) && at_least(o.dilation, 1) && at_least(o.padding, 0) && o.groups >= 1,
      "conv_transpose2d: stride, dilation and groups must be at least 1, and padding at least 0");

  const int64_t out = weight.size(1) * o.groups;
  LATHE_CHECK(x.size(1) == weight.size(0), "conv_transpose2d: x has ", x.size(1),
              " channels, but the weight is for ", weight.size(0));
  LATHE_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == out),
              "conv_transpose2d: bias must have shape [", out, "]");

  const auto size = [](int64_t n, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                       int64_t more) {
    LATHE_CHECK(more >= 0 && (more < stride || more < dilation),
                "conv_transpose2d: an output_padding of ", more,
                " must be below the stride or the dilation");
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1;
  };
  const ImageSizes sizes{
      x.size(0), out,
      size(x.size(2), weight.size(2), o.stride.h, o.padding.h, o.dilation.h, o.output_padding.h),
      size(x.size(3), weight.size(3), o.stride.w, o.padding.w, o.dilation.w, o.output_padding.w)};

  LATHE_CHECK(sizes[2] > 0 && sizes[3] > 0, "conv_transpose2d: the result would be empty for x ",
              describe(x.data()));

  // If output_padding is at least the stride, conv2d would map the result to a larger image than x.
  // Pad x to the size of that image.
  const int64_t extra_rows = o.output_padding.h / o.stride.h,
                extra_columns = o.output_padding.w / o.stride.w;
  const Variable y = conv2d_input_grad(
      extra_rows + extra_columns > 0 ? pad(x, {0, extra_columns, 0, extra_rows}) : x, weight, sizes,
      {.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups});

  return bias.defined() ? add(y, reshape(cast(bias, y.dtype()), {out, 1, 1})) : y;
}

Variable max_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride,
                    int64_t padding, int64_t dilation, bool ceil_mode) {
  require_defined("max_pool1d", {&x});
  return as_sequence(max_pool2d(as_image(x, "max_pool1d"), {1, kernel},
                                Pair(1, stride.value_or(kernel)), {0, padding}, {1, dilation},
                                ceil_mode));
}
Variable avg_pool1d(const Variable& x, int64_t kernel, std::optional<int64_t> stride,
                    int64_t padding, bool ceil_mode, bool count_include_pad) {
  require_defined("avg_pool1d", {&x});
  return as_sequence(avg_pool2d(as_image(x, "avg_pool1d"), {1, kernel},
                                Pair(1, stride.value_or(kernel)), {0, padding}, ceil_mode,
                                count_include_pad));
}
Variable adaptive_avg_pool1d(const Variable& x, int64_t out) {
  require_defined("adaptive_avg_pool1d", {&x});
  return as_sequence(adaptive_avg_pool2d(as_image(x, "adaptive_avg_pool1d"), {1, out}));
}

}  // namespace lathe
