// Declares weights that are stored in 8 or 4 bits. Each block of 64 elements has a scale, which is
// derived from the largest absolute value m of the block.
//   int8: 127 levels to either side of zero; the scale is m / 127. Dettmers et al. 2022,
//         "8-bit optimizers via block-wise quantization"
//   nf4:  16 levels at the quantiles of a normal distribution; the scale is m. Dettmers et al.
//         2023, "QLoRA"
// With double quantization, the scales minus their mean are stored in 8 bits. Each block of 256
// scales has a scale for these 8-bit numbers.
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
  /// `int8` has 8 bits and 255 levels; `nf4` has 4 bits and 16 levels.
  enum class Format { int8, nf4 };

  /// Quantizes `t` on the CPU, and then moves the result to `device`. The tensor is quantized in
  /// parts, so this takes only a few megabytes in addition to the result. Throws if `t` is empty or
  /// not a floating-point tensor.
  QuantizedTensor(const at::Tensor& t, Format format, bool double_quant, at::Device device);

  /// Returns the complete tensor in a floating-point dtype.
  at::Tensor dequantize(at::ScalarType dtype) const;
  /// Returns pointers to codes and scales for gemv_quantized(). The pointers are valid as long as
  /// this tensor exists. Returns nullopt unless the tensor is a matrix on the CPU and the length of
  /// its rows is a multiple of 64.
  std::optional<QuantizedView> view() const;
  at::IntArrayRef sizes() const { return sizes_; }
  /// Returns the number of bytes of the codes and scales.
  int64_t nbytes() const;

 private:
  at::Tensor scales(int64_t first_block, int64_t blocks) const;

  Format format_;
  std::vector<int64_t> sizes_;
  int64_t numel_ = 0;
  at::Tensor codes_;   // int8: int8 [n]; nf4: uint8 [n / 2], with the first code of a byte in the
                       // upper half. n is the number of elements, rounded up to complete blocks
  at::Tensor scales_;  // the scale of each block: float32, or int8 with double quantization
  at::Tensor scale_scales_;  // double quantization: a float32 factor for the scales of each 256
                             // blocks; otherwise undefined
  at::Tensor scale_mean_;    // double quantization: the mean of the scales, float32 []; otherwise
                             // undefined
  at::Tensor table_;         // nf4: the two levels that each byte encodes, float32 [256, 2];
                             // otherwise undefined
};

/// Returns the levels of nf4 in ascending order.
const std::vector<float>& nf4_levels();

}  // namespace lathe
