#include "train/session/parameter_pages.h"

#include <algorithm>

#include "autograd/node.h"
#include "core/mapped_memory.h"

namespace lathe {
namespace {

/// Returns the tensors of a parameter's values and of its working copy whose memory is mapped.
std::vector<at::Tensor> mapped_tensors(const NamedParameter& p) {
  const Leaf* leaf = p.parameter.as_leaf();
  const at::Tensor low = leaf != nullptr ? leaf->precision.low : at::Tensor();
  std::vector<at::Tensor> mapped;
  for (const at::Tensor& t : {p.parameter.data(), low}) {
    if (t.defined() && MappedMemory::holds(t.storage().data_ptr())) mapped.push_back(t);
  }
  return mapped;
}

}  // namespace

ParameterPages::ParameterPages(std::span<const NamedParameter> parameters) {
  int64_t outside = 0;
  std::map<int64_t, int64_t> bytes;
  for (const NamedParameter& p : parameters) {
    for (const at::Tensor& t : mapped_tensors(p)) {
      const auto size = static_cast<int64_t>(t.nbytes());
      if (p.block < 0) {
        outside += size;
      } else {
        bytes[p.block] += size;
        blocks_[p.block].push_back(t);
      }
    }
  }

  int64_t largest = 0;
  for (const auto& [block, size] : bytes) largest = std::max(largest, size);
  resident_bytes_ = outside + largest;
}

void ParameterPages::release(const NamedParameter& p) {
  if (p.block < 0) return;
  for (const at::Tensor& t : mapped_tensors(p)) MappedMemory::release(t.storage().data_ptr());
}

template <class F>
void ParameterPages::each(int64_t block, F&& f) const {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  for (const at::Tensor& t : found->second) f(t.storage().data_ptr());
}

void ParameterPages::begin(size_t block, bool is_recomputed) {
  // Recomputation goes from the last block to the first. When recomputation reaches a block, the
  // backward pass of the following block is over.
  const auto number = static_cast<int64_t>(block);
  if (is_recomputed) each(number + 1, MappedMemory::release);
  each(is_recomputed ? number - 1 : number + 1, MappedMemory::prefetch);
}

void ParameterPages::end(size_t block, bool is_recomputed) {
  // The backward pass begins with the last block, so keep the last block's pages.
  const auto number = static_cast<int64_t>(block);
  if (!is_recomputed && blocks_.contains(number + 1)) each(number, MappedMemory::release);
}

}  // namespace lathe
