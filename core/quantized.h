// Weights kept in 8 or 4 bits: blocks of 64 elements share a scale, their largest absolute value.
//   int8: 127 levels to either side of zero. Dettmers et al. 2022, "8-bit optimizers via
//         block-wise quantization"
//   nf4:  16 levels at the quantiles of a normal distribution. Dettmers et al. 2023, "QLoRA". With
//         double quantization the scales are kept in 8 bits too, in blocks of 256 about their mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/gemv.h"

namespace lathe {

class QuantizedTensor {
 public:
  /// int8: 8 bits of 255 levels; nf4: 4 bits of 16 levels (Dettmers et al. 2023). Both have a scale
  /// for each block.
  enum class Format { int8, nf4 };

  /// Quantizes a floating-point tensor in parts, which takes a few megabytes beside the result. The
  /// result is stored on `device`.
  QuantizedTensor(const at::Tensor& t, Format format, bool double_quant, at::Device device);

  /// Returns the whole tensor in a floating-point dtype.
  at::Tensor dequantize(at::ScalarType dtype) const;
  /// Returns pointers to codes and scales, for the kernels' quantized matmul; nullopt if the rows
  /// are not whole blocks or the codes are on a GPU.
  std::optional<QuantizedView> view() const;
  at::IntArrayRef sizes() const { return sizes_; }
  /// Returns the bytes of codes and scales.
  int64_t nbytes() const;

 private:
  at::Tensor scales(int64_t first_block, int64_t blocks) const;

  Format format_;
  std::vector<int64_t> sizes_;
  int64_t numel_ = 0;
  at::Tensor codes_;   // int8: int8 [n]; nf4: uint8 [n / 2], the first of two in the upper half. n
                       // counts whole blocks
  at::Tensor scales_;  // a scale for each block: float32, or int8 with double quantization
  at::Tensor scale_scales_;  // double quantization: float32 for each 256 blocks
  at::Tensor scale_mean_;    // [] float32
  at::Tensor table_;         // nf4: [256, 2] float32, the two levels of a byte
};

/// Returns the levels of nf4 in ascending order.
const std::vector<float>& nf4_levels();

}  // namespace lathe
