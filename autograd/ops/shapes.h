// Shapes and places beside those of ops.h, with PyTorch's names and argument order. Dims may be
// negative. Views share x's storage: squeeze, chunk, split, unfold, diagonal, and what ops.h says
// of its own.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace lathe {

// Views (ops/views.cc).
/// Without its dims of size 1, or those of `dims` that are.
Variable squeeze(const Variable& x);
Variable squeeze(const Variable& x, at::IntArrayRef dims);
/// Parts of `size` along a dim, the last one shorter where it does not divide.
std::vector<Variable> split(const Variable& x, int64_t size, int64_t dim = 0);
/// `chunks` parts of one size along a dim, the last one shorter, or fewer parts, where they do not
/// divide.
std::vector<Variable> chunk(const Variable& x, int64_t chunks, int64_t dim = 0);
/// Windows of `size` along a dim, `step` apart, in a new last dim: Tensor.unfold (F.unfold is
/// im2col).
Variable unfold(const Variable& x, int64_t dim, int64_t size, int64_t step);
/// Its adjoint, for an x of `sizes`: windows that overlap add up.
Variable unfold_backward(const Variable& dy, at::IntArrayRef sizes, int64_t dim, int64_t size,
                         int64_t step);
/// Elements (i, i + offset) of two dims, in a new last dim.
Variable diagonal(const Variable& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Its adjoint: zeros of `sizes` with x on the diagonal.
Variable diagonal_backward(const Variable& x, at::IntArrayRef sizes, int64_t offset, int64_t dim1,
                           int64_t dim2);

// Copies (ops/views.cc).
/// Tensors of one shape along a new dim.
Variable stack(const std::vector<Variable>& xs, int64_t dim = 0);
Variable flip(const Variable& x, at::IntArrayRef dims);
/// Shifts places along dims, what leaves at one end comes in at the other; no dims: of all elements
/// in order.
Variable roll(const Variable& x, at::IntArrayRef shifts, at::IntArrayRef dims = {});
/// Zeroes what lies above the given diagonal of the last two dims.
Variable tril(const Variable& x, int64_t diagonal = 0);
/// What stands around x: a value, its values mirrored (without the edge), its edge, or x again.
enum class PadMode { constant, reflect, replicate, circular };
/// Widens the last dims: `pads` are places before and behind the last dim, then before and behind
/// the one before it, and so on. Negative ones cut.
Variable pad(const Variable& x, at::IntArrayRef pads, PadMode mode = PadMode::constant,
             double value = 0);

// Places (ops/places.cc). Indices are int64.
/// x's slices at places of a dim, which may repeat.
Variable index_select(const Variable& x, int64_t dim, const at::Tensor& index);
/// x with source's slices added at places of a dim.
Variable index_add(const Variable& x, int64_t dim, const at::Tensor& index, const Variable& source);
/// x with src added at places: y[index[i][j]][j] += src[i][j] for dim 0; index within src's shape,
/// and within x's but for `dim`.
Variable scatter_add(const Variable& x, int64_t dim, const at::Tensor& index, const Variable& src);

// Products of whole tensors (ops/views.cc).
/// a [n], b [m] -> [n, m].
Variable outer(const Variable& a, const Variable& b);
/// [b, n, k] x [b, k, m] -> [b, n, m].
Variable bmm(const Variable& a, const Variable& b);

}  // namespace lathe
