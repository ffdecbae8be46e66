// Tensors of zeros that take memory only where they are written. The gradient of an embedding has
// values in the rows of the tokens of a batch alone, which are few of a large vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns contiguous zeros on the CPU. The system gives a page of it memory when that page is
/// first written; until then it reads as zeros. memory_stats() counts `written` bytes of it, in the
/// current category: an upper limit of what will be written. Throws Exit::memory if the system has
/// no addresses left.
at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options, int64_t written);
/// Returns whether the memory of `t` is that of a tensor of lazy_zeros().
bool is_lazy_zeros(const at::Tensor& t);
/// Counts that `written` more bytes of a tensor of lazy_zeros() will be written, up to its size.
/// Does nothing to other tensors.
void count_written(const at::Tensor& t, int64_t written);
/// Adds `other` to `t` in place, which writes all of `t`.
void add_to(at::Tensor& t, const at::Tensor& other);

/// Returns an upper limit of the bytes of memory that `count` scattered rows of a contiguous matrix
/// take, in complete pages. `row_bytes`: of one row.
int64_t bytes_of_scattered_rows(int64_t count, int64_t row_bytes);

}  // namespace lathe
