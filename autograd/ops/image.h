// Defines helpers of ops on images [B, C, H, W].
#pragma once

#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>

#include <array>

#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

using ImageSizes = std::array<int64_t, 4>;

inline std::array<int64_t, 2> both(Pair p) { return {p.h, p.w}; }
inline bool at_least(Pair p, int64_t least) { return p.h >= least && p.w >= least; }
inline ImageSizes image_sizes(at::IntArrayRef sizes) {
  LATHE_CHECK(sizes.size() == 4, "needs 4 dims, not ", describe(sizes));
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

/// Returns dx = H^T dy W, the adjoint of a separable linear map from images of size `from`.
/// `map(image, {h, w})` applies the map with results of h x w. The columns of the matrices H and W
/// are the map's results for unit vectors along dims 2 and 3. Use this on GPUs, where ATen's
/// adjoints add in an order that differs between runs.
template <class Map>
at::Tensor adjoint_by_products(const at::Tensor& dy, const ImageSizes& from, Map&& map) {
  const auto options =
      dy.options().dtype(dy.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor h =
      map(at::eye(from[2], options).view({1, from[2], from[2], 1}), Pair(dy.size(2), 1));
  const at::Tensor w =
      map(at::eye(from[3], options).view({1, from[3], 1, from[3]}), Pair(1, dy.size(3)));
  const at::Tensor rows = at::matmul(h.view({from[2], dy.size(2)}), dy.to(options.dtype()));
  return at::matmul(rows, w.view({from[3], dy.size(3)}).t()).to(dy.scalar_type());
}

}  // namespace lathe
