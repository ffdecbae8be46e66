#include "autograd/tensor_cut.h"

#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>

#include <numeric>

#include "autograd/node.h"

namespace lathe {

ElementRange TensorCut::range(size_t section, int64_t part_) const {
  const int64_t n = sections[section];
  return {n * part_ / parts, n * (part_ + 1) / parts};
}

std::vector<int64_t> TensorCut::part_sizes(at::IntArrayRef sizes, int64_t part_) const {
  std::vector<int64_t> result = sizes.vec();
  int64_t& rows = result[static_cast<size_t>(dim)];
  rows = 0;
  for (size_t s = 0; s < sections.size(); ++s) rows += range(s, part_).size();
  return result;
}

std::vector<int64_t> TensorCut::full_sizes(at::IntArrayRef sizes) const {
  std::vector<int64_t> result = sizes.vec();
  result[static_cast<size_t>(dim)] = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  return result;
}

at::Tensor TensorCut::part_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> own;
  int64_t begin = 0;
  for (size_t s = 0; s < sections.size(); ++s) {
    const ElementRange rows = range(s, part);
    own.push_back(whole.narrow(dim, begin + rows.begin, rows.size()));
    begin += sections[s];
  }
  return at::cat(own, dim);
}

at::Tensor TensorCut::join(const std::vector<at::Tensor>& all) const {
  std::vector<at::Tensor> pieces;
  std::vector<int64_t> begins(all.size());
  for (size_t s = 0; s < sections.size(); ++s) {
    for (size_t p = 0; p < all.size(); ++p) {
      const int64_t rows = range(s, static_cast<int64_t>(p)).size();
      pieces.push_back(all[p].narrow(dim, begins[p], rows));
      begins[p] += rows;
    }
  }
  return at::cat(pieces, dim);
}

std::vector<int64_t> TensorCut::flat_part_offsets(at::IntArrayRef sizes) const {
  std::vector<int64_t> cuts{0};
  for (int64_t p = 0; p < parts; ++p)
    cuts.push_back(cuts.back() + c10::multiply_integers(part_sizes(sizes, p)));
  return cuts;
}

at::Tensor TensorCut::join_flat(const at::Tensor& flat, at::IntArrayRef sizes) const {
  const std::vector<int64_t> cuts = flat_part_offsets(sizes);
  std::vector<at::Tensor> all;
  for (int64_t p = 0; p < parts; ++p) {
    const auto at = static_cast<size_t>(p);
    all.push_back(flat.narrow(0, cuts[at], cuts[at + 1] - cuts[at]).view(part_sizes(sizes, p)));
  }
  return join(all);
}

const TensorCut* cut_of(const Variable& v) {
  const Leaf* leaf = v.as_leaf();
  return leaf == nullptr ? nullptr : leaf->cut.get();
}

bool is_cut(const Variable& v, int64_t dim) {
  const TensorCut* cut = cut_of(v);
  return cut != nullptr && cut->dim == dim;
}

std::vector<int64_t> full_sizes(const Variable& v) {
  const TensorCut* cut = cut_of(v);
  return cut == nullptr ? v.sizes().vec() : cut->full_sizes(v.sizes());
}

int64_t full_numel(const Variable& v) { return c10::multiply_integers(full_sizes(v)); }

}  // namespace lathe
