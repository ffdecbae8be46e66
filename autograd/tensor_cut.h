// Describes how a parameter is cut among the processes that compute its layer together (tensor
// parallelism).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "autograd/variable.h"
#include "core/element_range.h"

namespace lathe {

/// One part of a tensor that is cut along a dimension. The tensor may consist of sections, such as
/// the queries, keys and values of a packed projection. Each part then has a share of every
/// section.
struct TensorCut {
  int64_t dim = 0;
  std::vector<int64_t> sections;  ///< sizes of the sections along `dim` in the complete tensor
  int64_t part = 0, parts = 1;    ///< index of this process's part, and number of parts

  /// Returns which rows of a section belong to a part. Rows are positions along `dim`, counted from
  /// the beginning of the section.
  ElementRange range(size_t section, int64_t part_) const;
  /// Returns the sizes of the tensor of part `part_`. `sizes` are the sizes of any part's tensor;
  /// only the sizes of the dimensions other than `dim` are read.
  std::vector<int64_t> part_sizes(at::IntArrayRef sizes, int64_t part_) const;
  /// Returns the sizes of the complete tensor. `sizes` are the sizes of any part's tensor.
  std::vector<int64_t> full_sizes(at::IntArrayRef sizes) const;
  /// Returns a contiguous copy of this process's part of the complete tensor `whole`.
  at::Tensor part_of(const at::Tensor& whole) const;
  /// Joins the tensors of all parts, given in the order of the parts, and returns the complete
  /// tensor.
  at::Tensor join(const std::vector<at::Tensor>& all) const;
  /// Returns parts + 1 offsets: the elements of part p are [offset[p], offset[p + 1]) of a flat
  /// tensor in which all parts follow each other. `sizes` are the sizes of any part's tensor.
  std::vector<int64_t> flat_part_offsets(at::IntArrayRef sizes) const;
  /// Returns the complete tensor from a flat tensor of all parts (see flat_part_offsets()). `sizes`
  /// are the sizes of any part's tensor.
  at::Tensor join_flat(const at::Tensor& flat, at::IntArrayRef sizes) const;
};

/// Returns how a parameter is cut, or null if `v` is not a parameter or this process has the
/// complete parameter.
const TensorCut* cut_of(const Variable& v);
/// Returns whether a parameter is cut along `dim`.
bool is_cut(const Variable& v, int64_t dim);
/// Returns the sizes of a parameter before it was cut.
std::vector<int64_t> full_sizes(const Variable& v);
/// Returns the number of elements of a parameter before it was cut.
int64_t full_numel(const Variable& v);

}  // namespace lathe
