// Implements the lookup of embeddings.
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/loss.h"
#include "core/lazy_zeros.h"
#include "core/memory.h"

namespace lathe {
namespace {

struct EmbeddingOp {
  static constexpr OpInfo info{.name = "embedding", .each = {0, 1}};
  Saved ids{};
  at::ScalarType out = at::kFloat,
                 grad = at::kFloat;  // dtypes of the result and of the table's gradient
  int64_t rows = 0;

  at::Tensor forward(const at::Tensor& weight) {
    LATHE_CHECK(weight.dim() == 2, "weight must be [V, C]");
    LATHE_CHECK(ids.data().scalar_type() == at::kLong, "ids must be int64, not ",
                describe(ids.data()));
    rows = weight.size(0);
    return at::embedding(weight, ids.data()).to(out);
  }
  // dweight[id] += sum of dy over the positions that have the id, computed in float32 or wider
  Grads<1> backward(const at::Tensor& dy, Needs<1>, GradSlots& slots) const {
    if (kernel_ready(dy) && kernel_dtype(grad)) {
      // Add to the gradient that the table already has, for example from a tied head, or to zeros.
      at::Tensor table = slots.take(0, grad);
      if (!table.defined()) table = zeros(dy);
      count_written(table, written(dy));
      const at::Tensor values = dy.contiguous(), places = ids.data().contiguous();
      scatter_add_rows(matrix_of(values), places.const_data_ptr<int64_t>(), places.numel(),
                       dy.size(-1), matrix_of(table));
      bump_version(table);
      return {table};
    }
    const at::Tensor wide = dy.scalar_type() == at::kDouble ? dy : dy.to(at::kFloat);
    const at::Tensor sums = at::embedding_dense_backward(wide, ids.data(), rows, /*padding_idx=*/-1,
                                                         /*scale_grad_by_freq=*/false);
    if (!gpu_kernel_ready(sums)) return {sums};

    at::Tensor table = slots.take(0, grad);
    if (!table.defined()) return {sums};
    if (sums.numel() % 4 != 0 || !is_aligned(table.const_data_ptr(), 16)) return {table.add_(sums)};
    cuda_api().add(table.const_data_ptr(), element_of(grad), sums.const_data_ptr(), Element::f32,
                   table.mutable_data_ptr(), table.numel());
    bump_version(table);
    return {table};
  }
  /// Returns an upper limit of the bytes that backward writes in the table's gradient, counted in
  /// complete pages.
  int64_t written(const at::Tensor& dy) const {
    const int64_t row_bytes = dy.size(-1) * static_cast<int64_t>(c10::elementSize(grad));
    return bytes_of_scattered_rows(std::min(ids.data().numel(), rows), row_bytes);
  }
  /// Returns zeros for the table's gradient. If few of the rows occur in the batch, the other rows
  /// take no memory.
  at::Tensor zeros(const at::Tensor& dy) const {
    const at::TensorOptions options = dy.options().dtype(grad);
    const int64_t bytes = rows * dy.size(-1) * static_cast<int64_t>(c10::elementSize(grad));
    constexpr int64_t least = int64_t{4} << 20;  // smaller tables stay in the processor's caches
    if (bytes < least || written(dy) > bytes / 2) return at::zeros({rows, dy.size(-1)}, options);
    const MemoryScope memory(Memory::gradients);
    return lazy_zeros({rows, dy.size(-1)}, options);
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    const Variable wide = dy.dtype() == at::kDouble ? dy : cast(dy, at::kFloat);
    return {index_backward(wide, {ids.data()}, {rows, dy.size(-1)})};
  }
};

}  // namespace

Variable embedding(const at::Tensor& ids, const Variable& weight) {
  require_defined("embedding", {&weight});
  // Construct the op with the ids, so that recompute() notices if they are changed in place.
  EmbeddingOp op{.ids = ids};
  // Under autocast, return float32 even for a low-precision weight: the result begins the residual
  // stream, which is float32.
  const bool widen = mode().compute != at::kFloat && weight.dtype() != at::kDouble;
  op.out = widen ? at::kFloat : weight.dtype();
  const Precision* kept = precision_of(weight);
  op.grad = kept != nullptr && weight.dtype() != at::kDouble ? kept->grad_dtype : weight.dtype();
  return apply(std::move(op), weight);
}

}  // namespace lathe
