// Creates tensors of zeros that take memory only where they are written. They serve as gradients of
// embeddings. Only the rows of the tokens that are in a batch get values. If the vocabulary is
// large, these are few of the gradient's rows.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns contiguous zeros on the CPU. A page of the tensor takes memory only after the first
/// write to the page. memory_stats() counts the bytes that count_written() announces, in the
/// category that is current when the tensor is created. Throws Exit::memory if the system has no
/// addresses left.
at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);
/// Returns whether the memory of `t` was created by lazy_zeros().
bool is_lazy_zeros(const at::Tensor& t);
/// Announces that at most `written` more bytes of a tensor of lazy_zeros() will be written, and
/// adds them to the number that memory_stats() counts. The total is at most the size of the tensor.
/// Does nothing for other tensors.
void count_written(const at::Tensor& t, int64_t written);
/// Adds `other` to `t` in place. This writes all of `t`, so all bytes of `t` are announced.
void add_to(at::Tensor& t, const at::Tensor& other);

/// Returns an upper limit of the number of bytes of memory that `count` scattered rows of a
/// contiguous matrix take, in complete pages. `row_bytes` is the size of a row.
int64_t bytes_of_scattered_rows(int64_t count, int64_t row_bytes);

}  // namespace lathe
