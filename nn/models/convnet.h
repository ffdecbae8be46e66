// A residual network of basic blocks for small images: He et al. 2015, "Deep residual learning",
// its networks for CIFAR-10 (section 4.2), with projections where a block changes shape. Shapes: B
// batch, C channels, H height, W width.
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
              "stages; each but the first halves height and width and doubles channels",
              between(1, 12).fixed())
  LATHE_FIELD(int64_t, n_block, 2, "residual blocks of a stage, of two 3 x 3 convolutions each",
              between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_channel, 16, "channels of the first stage", between(1, 100000).fixed())
  LATHE_FIELD(double, dropout, 0.0, "share of the pooled features zeroed in training",
              below(0, 1).fixed())
  LATHE_FIELD(std::string, init, "kaiming", "how filters and the head's weight start",
              one_of(init_names()).fixed())
};

/// relu(shortcut(x) + norm2(conv2(relu(norm1(conv1(x)))))). x [B, in, H, W] -> [B, out, H / stride,
/// W / stride], rounded up. The stream of blocks stays in float32 under autocast.
struct BasicBlock {
  Conv2d conv1;
  BatchNorm2d norm1;
  Conv2d conv2;
  BatchNorm2d norm2;
  /// 1 x 1, where shape or number of channels change.
  struct Projection {
    Conv2d conv;
    BatchNorm2d norm;
    void visit(Visit& v) {
      v("conv", conv);
      v("norm", norm);
    }
  };
  std::optional<Projection> shortcut;  ///< a 1 x 1 convolution where shapes differ; else x itself

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

  /// Of images [C, H, W], or [H, W] of one channel. Parameters all zero until they are initialized.
  ConvNet(const ConvNetConfig& config, const ModelSizes& sizes);
  /// The next smaller version: fewer blocks of a stage, fewer channels, then fewer stages.
  static std::optional<ConvNetConfig> scale_down(const ConvNetConfig& config);
  /// x [B, C, H, W], or [B, H, W] -> [B, outputs].
  Variable operator()(const Variable& x) const;
  /// Training FLOPs of a sample: 6 for each weight of a product and each place that it is at,
  /// forward and backward.
  double flops_per_unit() const;
  void visit(Visit& v) {
    v("stem", stem);
    v("stem_norm", stem_norm);
    v.blocks("blocks", blocks);
    v("dropout", drop);
    v("head", head);
  }
};

/// Number of parameters, from the config and sizes alone.
int64_t parameter_count(const ConvNetConfig& config, const ModelSizes& sizes);

}  // namespace lathe
