#include "core/sum.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "core/rows.h"

namespace lathe {
namespace {

constexpr int64_t part = 1 << 15;  // up to this number of elements, ATen sums on one thread

/// Returns the sum of all elements of x as a tensor [].
at::Tensor sum_of_all(const at::Tensor& x) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor flat = x.reshape({-1});
  const int64_t whole = flat.numel() / part * part;
  const at::Tensor sums = at::cat({flat.slice(0, 0, whole).view({-1, part}).sum(1, false, wide),
                                   flat.slice(0, whole).sum(0, true, wide)});
  return (sums.numel() < part ? sums.sum() : sum_of_all(sums)).to(x.scalar_type());
}

bool is_split_among_threads(const at::Tensor& x, int64_t results) {
  return x.is_cpu() && x.is_floating_point() && x.numel() >= part && results == 1;
}

}  // namespace

at::Tensor fixed_sum(const at::Tensor& x, at::IntArrayRef dims, bool keepdim) {
  const bool is_of_rows = dims.size() == 1 && dims[0] == x.dim() - 1 && has_row_sums(x);
  if (!is_of_rows && x.numel() < part) return x.sum(dims, keepdim);
  c10::SmallVector<int64_t, 5> sizes;
  int64_t results = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool is_summed = dims.empty() || std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!is_summed) results *= x.size(d);
    if (!is_summed || keepdim) sizes.push_back(is_summed ? 1 : x.size(d));
  }
  if (is_of_rows) return row_sums(x, sizes);
  if (!is_split_among_threads(x, results)) return x.sum(dims, keepdim);
  return sum_of_all(x).view(sizes);
}

at::Tensor fixed_sum_to(const at::Tensor& x, at::IntArrayRef sizes) {
  const int64_t results = c10::multiply_integers(sizes);
  const bool is_of_rows =
      !sizes.empty() && sizes.back() == 1 && has_row_sums(x) && results * x.size(-1) == x.numel();
  if (is_of_rows) return row_sums(x, sizes);
  if (is_split_among_threads(x, results)) return sum_of_all(x).view(sizes);
  return at::sum_to(x, sizes, /*always_return_non_view=*/true);
}

}  // namespace lathe
