// Declares a residual network of basic blocks for small images, as in He et al. 2015, "Deep
// residual learning" (section 4.2, CIFAR-10). A shortcut is a projection if its block changes the
// shape. Shapes: B batch, C channels, H height, W width.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/model.h"

namespace lathe {

struct ConvNetConfig {
  LATHE_FIELD(int64_t, n_stage, 3,
              "Number of stages. Each stage after the first halves the height and the width and "
              "doubles the channels.",
              between(1, 12).fixed())
  LATHE_FIELD(int64_t, n_block, 2,
              "Number of residual blocks per stage. Each has two 3 x 3 convolutions.",
              between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_channel, 16, "Channels of the first stage.", between(1, 100000).fixed())
  LATHE_FIELD(double, dropout, 0.0, "Dropout rate on the pooled features.", below(0, 1).fixed())
  LATHE_FIELD(std::string, init, "kaiming",
              "Initialization of the filters and of the head's weight.",
              one_of(init_names()).fixed())
};

/// Computes relu(shortcut(x) + norm2(conv2(relu(norm1(conv1(x)))))): x [B, in, H, W] -> [B, out,
/// ceil(H / stride), ceil(W / stride)]. The residual stream stays in float32 under autocast.
struct BasicBlock {
  Conv2d conv1;
  BatchNorm2d norm1;
  Conv2d conv2;
  BatchNorm2d norm2;
  /// A 1 x 1 convolution and its norm.
  struct Projection {
    Conv2d conv;
    BatchNorm2d norm;
    void visit(Visit& v) {
      v("conv", conv);
      v("norm", norm);
    }
  };
  /// nullopt if the block keeps the shape; the shortcut is then x
  std::optional<Projection> shortcut;

  BasicBlock(int64_t in, int64_t out, int64_t stride);
  Variable operator()(const Variable& x_BCHW) const;
  void visit(Visit& v) {
    v("conv1", conv1);
    v("norm1", norm1);
    v("conv2", conv2);
    v("norm2", norm2);
    v("shortcut", shortcut);
  }
};

/// The model of kind "convnet".
struct ConvNet {
  ConvNetConfig config;
  std::array<int64_t, 3> image;  ///< C, H, W
  Conv2d stem;
  BatchNorm2d stem_norm;
  std::vector<BasicBlock> blocks;
  Dropout drop;
  Linear head;

  /// Creates the model for images [C, H, W], or [H, W] with one channel. Parameters are zero until
  /// they are initialized.
  ConvNet(const ConvNetConfig& config, const ModelSizes& sizes);
  /// Returns the next smaller version: fewer blocks per stage, fewer channels (down to 8), fewer
  /// stages (down to 3), then still fewer channels.
  static std::optional<ConvNetConfig> scale_down(const ConvNetConfig& config);
  /// Maps x [B, C, H, W] or [B, H, W] to [B, outputs].
  Variable operator()(const Variable& x) const;
  /// Returns the training FLOPs of a sample: 6 for each weight and each position to which the
  /// weight is applied, in the forward and backward passes together.
  double flops_per_unit() const;
  void visit(Visit& v) {
    v("stem", stem);
    v("stem_norm", stem_norm);
    v.blocks("blocks", blocks);
    v("dropout", drop);
    v("head", head);
  }
};

/// Returns the number of parameters that a model of this config and these sizes has.
int64_t parameter_count(const ConvNetConfig& config, const ModelSizes& sizes);

}  // namespace lathe
