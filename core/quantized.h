// Weights stored in 8 or 4 bits. Each block of 64 elements has a scale, which is derived from the
// largest absolute value m of the block.
//   int8: 127 levels to either side of zero; the scale is m / 127. Dettmers et al. 2022,
//         "8-bit optimizers via block-wise quantization"
//   nf4:  16 levels at the quantiles of a normal distribution; the scale is m. Dettmers et al.
//         2023, "QLoRA"
// With double quantization, the scales minus their mean are stored in 8 bits; each block of 256
// scales has a scale of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/gemv.h"

namespace lathe {

/// A frozen tensor in 8 or 4 bits.
class QuantizedTensor {
 public:
  /// int8: 8 bits, 255 levels; nf4: 4 bits, 16 levels.
  enum class Format { int8, nf4 };

  /// Quantizes a floating-point tensor on the CPU, and then moves the result to `device`. This is
  /// done in parts, so it takes only a few megabytes in addition to the result. Throws if `t` is
  /// empty or not a floating-point tensor.
  QuantizedTensor(const at::Tensor& t, Format format, bool double_quant, at::Device device);

  /// Returns the complete tensor in a floating-point dtype.
  at::Tensor dequantize(at::ScalarType dtype) const;
  /// Returns pointers to codes and scales for gemv_quantized(), valid while this tensor lives;
  /// nullopt unless the tensor is a matrix on the CPU whose rows are a multiple of 64 elements.
  std::optional<QuantizedView> view() const;
  at::IntArrayRef sizes() const { return sizes_; }
  /// Returns the bytes of codes and scales.
  int64_t nbytes() const;

 private:
  at::Tensor scales(int64_t first_block, int64_t blocks) const;

  Format format_;
  std::vector<int64_t> sizes_;
  int64_t numel_ = 0;
  at::Tensor codes_;   // int8: int8 [n]; nf4: uint8 [n / 2], the first code of a byte in its upper
                       // half. n: the number of elements, rounded up to whole blocks
  at::Tensor scales_;  // a scale for each block: float32, or int8 with double quantization
  at::Tensor scale_scales_;  // double quantization: float32 for each 256 blocks
  at::Tensor scale_mean_;    // [] float32
  at::Tensor table_;         // nf4: [256, 2] float32, the two levels of a byte
};

/// Returns the levels of nf4 in ascending order.
const std::vector<float>& nf4_levels();

}  // namespace lathe
