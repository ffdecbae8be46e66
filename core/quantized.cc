#include "core/quantized.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "core/error.h"

namespace lathe {
namespace {

constexpr int64_t block = 64, scale_block = 256;
// The numbers of elements that are converted together. Both are multiples of block * scale_block,
// so a part never splits a block of scales. large_part is for GPUs, and keeps the number of kernel
// launches low. small_part keeps the float32 copy small.
constexpr int64_t small_part = 1 << 18, large_part = 1 << 24;

int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Returns the elements of t in rows of `width` elements. The last row is padded with zeros.
at::Tensor in_rows(const at::Tensor& t, int64_t width) {
  return at::constant_pad_nd(t, {0, up(t.numel(), width) - t.numel()}).view({-1, width});
}

/// Returns the scales [rows, 1]: the largest absolute value of each row, divided by `levels`.
at::Tensor row_scales(const at::Tensor& rows, double levels) {
  return rows.abs().amax(1, /*keepdim=*/true) / levels;
}
/// Divides rows by their scales. A row of zeros stays zero.
at::Tensor over(const at::Tensor& rows, const at::Tensor& by) {
  return rows / at::where(by.gt(0), by, 1.0);
}

/// Returns a tensor [256, 2] with the two values that each byte encodes.
at::Tensor nf4_table() {
  std::vector<float> pairs;
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs.push_back(nf4_levels()[byte >> 4]);
    pairs.push_back(nf4_levels()[byte & 15]);
  }
  return at::tensor(pairs).view({256, 2});
}

}  // namespace

const std::vector<float>& nf4_levels() {
  // The levels are quantiles of N(0, 1), divided by the largest: eight above zero, zero, and seven
  // below zero (Dettmers et al. 2023, "QLoRA", appendix E).
  static const std::vector<float> levels{-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};
  return levels;
}

QuantizedTensor::QuantizedTensor(const at::Tensor& t, Format format, bool double_quant,
                                 at::Device device)
    : format_(format), sizes_(t.sizes().vec()), numel_(t.numel()) {
  LATHE_CHECK(t.is_floating_point() && numel_ > 0,
              "quantized: the tensor must be floating-point and have at least one element");
  const at::Tensor flat = t.reshape(-1);
  // The codes fill complete blocks. The last block is padded with zeros.
  const int64_t whole = up(numel_, block);
  codes_ = at::empty({format == Format::nf4 ? whole / 2 : whole},
                     format == Format::nf4 ? at::kByte : at::kChar);
  scales_ = at::empty({whole / block}, at::kFloat);

  // The midpoints of neighboring levels are the boundaries from which bucketize() finds the nearest
  // nf4 level.
  std::vector<float> middles;
  for (size_t i = 0; i + 1 < nf4_levels().size(); ++i)
    middles.push_back((nf4_levels()[i] + nf4_levels()[i + 1]) / 2);
  const at::Tensor boundaries = at::tensor(middles);

  // Quantize one part at a time, so that the float32 copy stays small.
  for (int64_t begin = 0; begin < numel_; begin += small_part) {
    const int64_t n = std::min(small_part, numel_ - begin), n_whole = up(n, block);
    const at::Tensor rows =
        in_rows(flat.slice(0, begin, begin + n).to(at::kCPU, at::kFloat), block);
    const at::Tensor by = row_scales(rows, format == Format::int8 ? 127.0 : 1.0);

    scales_.slice(0, begin / block, (begin + n_whole) / block).copy_(by.view(-1));
    const at::Tensor scaled = over(rows, by).view(-1);
    if (format == Format::int8) {
      codes_.slice(0, begin, begin + n_whole).copy_(scaled.round_());
    } else {
      // Two codes share a byte. The first code is in the upper half.
      const at::Tensor pairs =
          at::bucketize(scaled, boundaries, /*out_int32=*/true).to(at::kByte).view({-1, 2});
      codes_.slice(0, begin / 2, (begin + n_whole) / 2)
          .copy_(pairs.select(1, 0) * 16 + pairs.select(1, 1));
    }
  }

  // Quantize the scales for double quantization. Scales are never negative, so subtract their mean
  // to use both signs of int8.
  if (double_quant) {
    scale_mean_ = scales_.mean();
    const at::Tensor rows = in_rows(scales_ - scale_mean_, scale_block);
    const at::Tensor by = row_scales(rows, 127.0);
    scale_scales_ = by.view(-1);
    scales_ = over(rows, by).round_().to(at::kChar).view(-1).slice(0, 0, whole / block).clone();
  }

  if (format == Format::nf4) table_ = nf4_table();
  for (at::Tensor* held : {&table_, &codes_, &scales_, &scale_scales_, &scale_mean_}) {
    if (held->defined()) *held = held->to(device);
  }
}

at::Tensor QuantizedTensor::scales(int64_t first_block, int64_t blocks) const {
  at::Tensor s = scales_.slice(0, first_block, first_block + blocks);
  if (!scale_scales_.defined()) return s;
  // A part begins at the beginning of a block of scales.
  const int64_t first = first_block / scale_block, groups = up(blocks, scale_block) / scale_block;
  const at::Tensor by = scale_scales_.slice(0, first, first + groups).unsqueeze(1);
  return (in_rows(s.to(at::kFloat), scale_block) * by).view(-1).slice(0, 0, blocks) + scale_mean_;
}

at::Tensor QuantizedTensor::dequantize(at::ScalarType dtype) const {
  const at::Tensor out = at::empty({numel_}, codes_.options().dtype(dtype));
  const int64_t part = codes_.is_cuda() ? large_part : small_part;
  for (int64_t begin = 0; begin < numel_; begin += part) {
    const int64_t n = std::min(part, numel_ - begin), n_whole = up(n, block);
    const at::Tensor values =
        format_ == Format::int8
            ? codes_.slice(0, begin, begin + n_whole).to(at::kFloat)
            : at::embedding(table_, codes_.slice(0, begin / 2, (begin + n_whole) / 2).to(at::kInt));
    const at::Tensor by = scales(begin / block, n_whole / block).unsqueeze(1);
    out.slice(0, begin, begin + n).copy_((values.view({-1, block}) * by).view(-1).slice(0, 0, n));
  }
  return out.view(sizes_);
}

std::optional<QuantizedView> QuantizedTensor::view() const {
  if (!codes_.is_cpu() || sizes_.size() != 2 || sizes_[1] % block != 0) return std::nullopt;
  QuantizedView b{.codes = codes_.const_data_ptr(), .scales = scales_.const_data_ptr()};
  if (format_ == Format::nf4) b.levels = nf4_levels().data();
  if (scale_scales_.defined()) {
    b.scale_scales = scale_scales_.const_data_ptr<float>();
    b.scale_mean = scale_mean_.item<float>();
  }
  return b;
}

int64_t QuantizedTensor::nbytes() const {
  int64_t n = 0;
  for (const at::Tensor* t : {&codes_, &scales_, &scale_scales_, &scale_mean_}) {
    if (t->defined()) n += static_cast<int64_t>(t->nbytes());
  }
  return n;
}

}  // namespace lathe
