#include "train/simulate/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {

double KernelModel::peak(MatmulDtype dtype) const {
  switch (dtype) {
    case MatmulDtype::fp32: return gpu.fp32_tflops * 1e12;
    case MatmulDtype::tf32: return std::max(gpu.tf32_tflops, gpu.fp32_tflops) * 1e12;
    case MatmulDtype::bf16: return gpu.bf16_tflops * 1e12;
    case MatmulDtype::fp8:
      if (gpu.fp8_tflops <= 0) {
        fail(Exit::usage, "the GPU ", printable_line(gpu.name),
             " has no fp8 rate; use --amp.dtype=bf16 or a GPU that supports fp8, such as h100");
      }
      return gpu.fp8_tflops * 1e12;
  }
  return 0;
}

double KernelModel::matmul(double m, double n, double k, MatmulDtype dtype, double count) const {
  // Tiles of CUTLASS, each with the share of the peak rate that its reuse of operands allows.
  struct Tile {
    double m, n, share;
  };
  static constexpr Tile tiles[]{
      {256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.92}, {128, 64, 0.75}, {64, 64, 0.55}};

  const double dtype_share = dtype == MatmulDtype::fp8 ? constants.fp8_share : 1;
  const double rate = peak(dtype) * gpu.matmul_share * dtype_share / gpu.multiprocessors;
  double fastest = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const double outputs = count * std::ceil(m / tile.m) * std::ceil(n / tile.n);
    for (const double parts : {1.0, 2.0, 4.0, 8.0}) {
      const double waves = std::ceil(outputs * parts / gpu.multiprocessors);
      const double inner = k / parts + constants.matmul_ramp;
      fastest = std::min(fastest, waves * 2 * tile.m * tile.n * inner / (rate * tile.share));
    }
  }

  const double width = dtype == MatmulDtype::fp8 ? 1 : dtype == MatmulDtype::bf16 ? 2 : 4;
  const double operands = count * (m * k + k * n), output = count * m * n * std::max(width, 2.0);
  const double bandwidth = gpu.memory_gb_per_second * 1e9 * constants.memory_share;
  return std::max(fastest, (operands * width + output) / bandwidth) + constants.kernel_us * 1e-6;
}

double KernelModel::traffic(double bytes, double kernels) const {
  return bytes / (gpu.memory_gb_per_second * 1e9 * constants.memory_share) +
         kernels * constants.kernel_us * 1e-6;
}

double KernelModel::attention(const TransformerShape& s, double sequences, double heads,
                              double context, MatmulDtype dtype, bool backward) const {
  if (dtype == MatmulDtype::fp8) dtype = MatmulDtype::bf16;
  const double matrices = sequences * heads;
  if (software.attention == "unfused")
    return unfused_attention(s, matrices, context, dtype, backward);

  const auto tokens = static_cast<double>(s.sequence), d = static_cast<double>(s.head_width);
  const bool is_native = software.attention == "flash3";
  const double share = software.attention == "flash1"   ? constants.flash1_share
                       : software.attention == "flash2" ? constants.flash2_share
                                                        : constants.flash3_share;

  // flash3 uses the instructions of the GPU's generation. The other kernels use portable
  // instructions, with which they can reach only `portable_share` of the rate.
  const double native = is_native ? 1.0 : gpu.portable_share;
  const double heads_of_128 = (128 + constants.attention_head_ramp) / 128;
  const double rate = peak(dtype) * share * native * heads_of_128 * d /
                      (d + constants.attention_head_ramp) * tokens /
                      (tokens + constants.attention_ramp);

  // For each pair of a query and a key, the forward pass has two products of D multiplications, and
  // the backward pass has five (Dao 2023).
  const double forward_flops = 4 * matrices * s.attended_pairs() * d / context;
  const double flops =
      backward ? 2.5 * forward_flops / constants.attention_backward_share : forward_flops;
  return flops / rate + constants.kernel_us * 1e-6;
}

double KernelModel::unfused_attention(const TransformerShape& s, double matrices, double context,
                                      MatmulDtype dtype, bool backward) const {
  const auto tokens = static_cast<double>(s.sequence), d = static_cast<double>(s.head_width);
  const double rows = tokens / context;
  const double scores = matrices * rows * tokens;

  // The forward pass computes two products, Q K^T and P V, over the complete mask. The backward
  // pass computes two products for each of these.
  const double products =
      matmul(rows, tokens, d, dtype, matrices) + matmul(rows, d, tokens, dtype, matrices);

  // The softmax reads and writes each score. Dropout reads and writes each score, and keeps a mask.
  const double e = dtype == MatmulDtype::bf16 ? 2 : 4;
  const double softmax =
      traffic(scores * (software.dropout ? 4 * e + 1 : 2 * e), software.dropout ? 2 : 1);
  return backward ? 2 * products + softmax * 1.3 : products + softmax;
}

}  // namespace lathe
