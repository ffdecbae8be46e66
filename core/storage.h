// Frees and restores the memory of tensors, while the tensor objects continue to exist. With
// dist.shard = "parameters", for example, a process frees the parameters of a block while the block
// does not run.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns a contiguous tensor that has sizes but no memory, as after free_storage().
at::Tensor tensor_without_memory(at::IntArrayRef sizes, const at::TensorOptions& options);
/// Returns whether a tensor can be read, because it has memory or has no elements.
bool has_memory(const at::Tensor& t);
/// Returns whether `t` fills its storage, which means that it is not a view of a part of a larger
/// tensor.
bool owns_memory(const at::Tensor& t);
/// Frees the memory of a tensor. The tensor keeps its sizes, but reading it throws. Does nothing if
/// `t` is undefined or has no elements.
void free_storage(const at::Tensor& t);
/// Replaces the memory of a CPU tensor by zeros that take no memory. The tensor keeps its sizes,
/// and must not be written to. Does nothing if `t` is on a GPU, is undefined or has no elements, or
/// if the process has no address space left.
void replace_by_zeros(const at::Tensor& t);
/// Allocates new memory, which is not initialized, for a tensor whose memory was freed. The
/// memory's category is Memory::parameters. Does nothing if the tensor has memory.
void allocate_storage(const at::Tensor& t);

}  // namespace lathe
