#include "core/blocks.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "core/dry_run.h"
#include "core/parallel.h"

namespace lathe {
namespace {

// Up to this number of elements, all of ATen's elementwise functions run on one thread.
constexpr int64_t most_on_one_thread = 16384;
// A last block with fewer elements is joined to the block before. ATen's gelu() of a tensor with
// one element may differ in bits from gelu() of the same element in a longer tensor.
constexpr int64_t slack = 64;

/// Returns the elements of a block of a tensor of n elements: a multiple of the elements of ATen's
/// vectors. Several large blocks run in a parallel region, in which ATen uses one thread for each.
int64_t block_of(int64_t n) { return (n < 16 * most_on_one_thread ? 16384 : 65536) - slack; }

/// Returns whether the tensors are float tensors on the CPU with the dtype and shape of the first.
bool can_be_divided(at::TensorList inputs) {
  const at::Tensor& first = inputs[0];
  return std::ranges::all_of(inputs, [&](const at::Tensor& t) {
    return t.is_cpu() && t.is_floating_point() && t.scalar_type() == first.scalar_type() &&
           t.sizes() == first.sizes();
  });
}

/// Returns the elements of a tensor in the order of its memory, without a copy.
at::Tensor flat(const at::Tensor& t) { return t.as_strided({t.numel()}, {1}); }

}  // namespace

at::Tensor in_blocks(const BlockFunction& f, at::TensorList inputs, const at::Tensor& out) {
  const at::Tensor& first = inputs[0];
  const int64_t n = first.numel();
  if (n <= most_on_one_thread || !can_be_divided(inputs) || is_dry_run()) {
    const at::Tensor y = f(inputs, nullptr);
    return out.defined() ? out.copy_(y) : y;
  }

  // Tensors without gaps in the memory, in the same order, need no copy.
  const auto fits = [&](const at::Tensor& t) { return t.strides() == first.strides(); };
  const bool in_order = first.is_non_overlapping_and_dense() && std::ranges::all_of(inputs, fits) &&
                        (!out.defined() || fits(out));
  std::vector<at::Tensor> from;
  for (const at::Tensor& t : inputs) from.push_back(flat(in_order ? t : t.contiguous()));
  const bool uses_out = in_order && out.defined();
  const auto order = in_order ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous;
  const at::Tensor y = uses_out ? out : at::empty_like(first, order);
  const at::Tensor to = flat(y);

  const int64_t block_elements = block_of(n);
  const auto run = [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowAutograd plain;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t rest = n - i * block_elements;
      const int64_t length = rest <= block_elements + slack ? rest : block_elements;
      std::vector<at::Tensor> part;
      for (const at::Tensor& t : from) part.push_back(t.narrow(0, i * block_elements, length));
      at::Tensor result = to.narrow(0, i * block_elements, length);
      f(part, &result);
    }
  };
  parallel_for(0, (n - slack + block_elements - 1) / block_elements, 1, run);
  return out.defined() && !uses_out ? out.copy_(y) : y;
}

}  // namespace lathe
