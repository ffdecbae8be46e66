#include "nn/models/convnet.h"

#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

std::array<int64_t, 3> image_of(const std::vector<int64_t>& input) {
  if (input.size() == 2) return {1, input[0], input[1]};
  LATHE_CHECK(input.size() == 3,
              "convnet: inputs must be images [C, H, W] or [H, W], but the data has ",
              describe(at::IntArrayRef(input)));
  return {input[0], input[1], input[2]};
}

Conv2d conv3x3(int64_t in, int64_t out, int64_t stride) {
  return Conv2d(in, out, 3, {.stride = stride, .padding = 1}, /*with_bias=*/false);
}

/// Calls f(input channels, output channels, stride) for each block.
template <class F>
void each_block(const ConvNetConfig& c, F&& f) {
  int64_t in = c.n_channel;
  for (int64_t stage = 0; stage < c.n_stage; ++stage) {
    const int64_t out = c.n_channel << stage;
    for (int64_t b = 0; b < c.n_block; ++b, in = out)
      f(in, out, stage > 0 && b == 0 ? int64_t{2} : int64_t{1});
  }
}

int64_t last_channels(const ConvNetConfig& c) { return c.n_channel << (c.n_stage - 1); }

}  // namespace

BasicBlock::BasicBlock(int64_t in, int64_t out, int64_t stride)
    : conv1(conv3x3(in, out, stride)), norm1(out), conv2(conv3x3(out, out, 1)), norm2(out) {
  if (in != out || stride != 1)
    shortcut.emplace(
        Projection{Conv2d(in, out, 1, {.stride = stride}, /*with_bias=*/false), BatchNorm2d(out)});
}

Variable BasicBlock::operator()(const Variable& x) const {
  ModuleCall call(*this, {{'C', conv1.weight.size(1)}, {'O', conv1.weight.size(0)}});
  call.input(x, "B C H W");
  const Variable branch = norm2(conv2(relu(norm1(conv1(x)))), /*wide=*/true);
  return call.result(
      relu(branch + (shortcut ? shortcut->norm(shortcut->conv(x), /*wide=*/true) : x)), "B O Y X");
}

ConvNet::ConvNet(const ConvNetConfig& c, const ModelSizes& sizes)
    : config(c),
      image(image_of(sizes.input)),
      stem(conv3x3(image[0], c.n_channel, 1)),
      stem_norm(c.n_channel),
      drop(c.dropout),
      head(last_channels(c), sizes.outputs, /*with_bias=*/true, Role::head) {
  for (const int64_t n : {image[0], image[1], image[2], sizes.outputs})
    LATHE_CHECK(n >= 1, "convnet: images ", describe(at::IntArrayRef(image)), " and ",
                sizes.outputs, " outputs; all sizes must be at least 1");
  each_block(
      c, [&](int64_t in, int64_t out, int64_t stride) { blocks.emplace_back(in, out, stride); });
  assign_random_streams(*this);
}

Variable ConvNet::operator()(const Variable& x) const {
  Variable h = x.dim() == 3 && image[0] == 1 ? unsqueeze(x, 1) : x;
  ModuleCall call(*this,
                  {{'C', image[0]}, {'H', image[1]}, {'W', image[2]}, {'O', head.weight.size(0)}});
  call.input(h, "B C H W");
  h = relu(stem_norm(stem(h), /*wide=*/true));
  return call.result(head(drop(mean(run_blocks(blocks, h), at::IntArrayRef{2, 3}))), "B O");
}

double ConvNet::flops_per_unit() const {
  int64_t h = image[1], w = image[2];
  double products = static_cast<double>(head.weight.numel() + stem.weight.numel() * h * w);
  for (const BasicBlock& block : blocks) {
    const int64_t stride = block.conv1.options.stride.h;
    h = (h - 1) / stride + 1;
    w = (w - 1) / stride + 1;
    int64_t weights = block.conv1.weight.numel() + block.conv2.weight.numel();
    if (block.shortcut) weights += block.shortcut->conv.weight.numel();
    products += static_cast<double>(weights * h * w);
  }
  return 6 * products;
}

int64_t parameter_count(const ConvNetConfig& c, const ModelSizes& sizes) {
  int64_t n = 9 * image_of(sizes.input)[0] * c.n_channel + 2 * c.n_channel;
  each_block(c, [&](int64_t in, int64_t out, int64_t) {
    n += 9 * in * out + 9 * out * out + 4 * out;
    if (in != out) n += in * out + 2 * out;
  });
  return n + (last_channels(c) + 1) * sizes.outputs;
}

std::optional<ConvNetConfig> ConvNet::scale_down(const ConvNetConfig& config) {
  ConvNetConfig c = config;
  if (halve(c.n_block, 1) || halve(c.n_channel, 8) || halve(c.n_stage, 3) || halve(c.n_channel, 1))
    return c;
  return std::nullopt;
}

}  // namespace lathe
