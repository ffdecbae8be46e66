// Defines lists of dims and sizes, and helpers of reductions.
#pragma once

#include <c10/util/SmallVector.h>

#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

using Dims = c10::SmallVector<int64_t, 5>;

inline Dims dims_of(at::IntArrayRef sizes) { return Dims(sizes.begin(), sizes.end()); }

/// Throws if a dim occurs twice. Negative dims must have been wrapped.
inline void check_distinct(const Dims& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      LATHE_CHECK(dims[i] != dims[j], "dim ", dims[i], " is given twice");
  }
}
/// Returns the given dims as numbers from 0 to ndim - 1, or all dims if none are given. Throws if a
/// dim is out of range or given twice.
inline Dims wrapped(at::OptionalIntArrayRef dims, int64_t ndim) {
  if (dims && dims->empty()) dims.reset();
  Dims out;
  for (int64_t i = 0; !dims && i < ndim; ++i) out.push_back(i);
  for (int64_t i = 0; dims && i < static_cast<int64_t>(dims->size()); ++i)
    out.push_back(wrap_dim((*dims)[i], ndim));
  if (dims) check_distinct(out);
  return out;
}
/// Returns `sizes` with 1 at the reduced dims, as for keepdim.
inline Dims keepdim_sizes(at::IntArrayRef sizes, const Dims& dims) {
  Dims kept = dims_of(sizes);
  for (size_t i = 0; i < dims.size() && !kept.empty(); ++i) kept[static_cast<size_t>(dims[i])] = 1;
  return kept;
}
/// Returns the number of elements that a reduction of `sizes` over the dims combines into one.
inline double reduced_count(at::IntArrayRef sizes, const Dims& dims) {
  double n = 1;
  for (const int64_t d : dims)
    n *= sizes.empty() ? 1.0 : static_cast<double>(sizes[static_cast<size_t>(d)]);
  return n;
}

}  // namespace lathe
