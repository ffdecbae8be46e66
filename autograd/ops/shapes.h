// Declares the ops on shapes and positions that ops.h does not have, with PyTorch's names and
// argument order. Dims may be negative. squeeze, chunk, split, unfold and diagonal return views,
// which share the storage of x.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace lathe {

// Views (ops/views.cc).
/// Removes all dims of size 1, or only the dims in `dims` that have size 1.
Variable squeeze(const Variable& x);
Variable squeeze(const Variable& x, at::IntArrayRef dims);
/// Splits x into parts of `size` along a dim. The last part is shorter if `size` does not divide
/// the dim.
std::vector<Variable> split(const Variable& x, int64_t size, int64_t dim = 0);
/// Splits x into `chunks` parts of equal size along a dim. If the dim is not divisible, the last
/// part is shorter, or there are fewer parts.
std::vector<Variable> chunk(const Variable& x, int64_t chunks, int64_t dim = 0);
/// Returns windows of `size` along a dim, `step` apart, in a new last dim. This is Tensor.unfold;
/// F.unfold is im2col.
Variable unfold(const Variable& x, int64_t dim, int64_t size, int64_t step);
/// Computes the gradient of unfold() with respect to x, whose shape is `sizes`. Overlapping windows
/// are added.
Variable unfold_backward(const Variable& dy, at::IntArrayRef sizes, int64_t dim, int64_t size,
                         int64_t step);
/// Returns the elements (i, i + offset) of two dims in a new last dim.
Variable diagonal(const Variable& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Returns zeros of `sizes` with x on the diagonal. This is the adjoint of diagonal().
Variable diagonal_backward(const Variable& x, at::IntArrayRef sizes, int64_t offset, int64_t dim1,
                           int64_t dim2);

// Copies (ops/views.cc).
/// Joins tensors of one shape along a new dim.
Variable stack(const std::vector<Variable>& xs, int64_t dim = 0);
Variable flip(const Variable& x, at::IntArrayRef dims);
/// Shifts elements along dims cyclically. If no dims are given, shifts the flattened tensor.
Variable roll(const Variable& x, at::IntArrayRef shifts, at::IntArrayRef dims = {});
/// Zeroes the elements above the given diagonal of the last two dims.
Variable tril(const Variable& x, int64_t diagonal = 0);
/// The values that pad() adds around x: a constant, x mirrored at its edge (without the edge
/// itself), the value at the edge, or x repeated cyclically.
enum class PadMode { constant, reflect, replicate, circular };
/// Pads the last dims: `pads` are the numbers of positions before and after the last dim, then
/// before and after the second to last, and so on. Negative numbers crop.
Variable pad(const Variable& x, at::IntArrayRef pads, PadMode mode = PadMode::constant,
             double value = 0);

// Positions (ops/places.cc). Indices are int64.
/// Returns the slices of x at positions of a dim. Positions may repeat.
Variable index_select(const Variable& x, int64_t dim, const at::Tensor& index);
/// Returns x with the slices of source added at positions of a dim.
Variable index_add(const Variable& x, int64_t dim, const at::Tensor& index, const Variable& source);
/// Returns x with src added at positions: y[index[i][j]][j] += src[i][j] for dim 0. Each size of
/// index must be at most the corresponding size of src and, except along `dim`, at most the
/// corresponding size of x.
Variable scatter_add(const Variable& x, int64_t dim, const at::Tensor& index, const Variable& src);

// Products of tensors (ops/views.cc).
/// Returns the outer product: a [n], b [m] -> [n, m].
Variable outer(const Variable& a, const Variable& b);
/// Multiplies batches of matrices: [b, n, k] x [b, k, m] -> [b, n, m].
Variable bmm(const Variable& a, const Variable& b);

}  // namespace lathe
