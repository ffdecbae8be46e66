// Describes tensors for debuggers and logs.
#pragma once

#include <string>

#include "autograd/variable.h"

namespace lathe {

/// Returns a description such as "float32[3,2], strides [1,3], not contiguous, elements 0 to 5 of a
/// storage of 24 bytes on cpu that 2 tensors hold". Strides and positions are in elements. The
/// description of an empty tensor has "no elements" instead of the positions.
std::string describe_tensor(const at::Tensor& t);
/// Returns the description of x's tensor, followed by the source of x in the autograd graph: "a
/// constant", a parameter, or the op that computed x and the sources of the op's inputs, such as "a
/// view, by transpose of the parameter w". A result or a constant is called a view if other tensors
/// share its storage, or if it covers only part of its storage. Returns "undefined" if x is
/// undefined.
std::string describe_tensor(const Variable& x);
/// Returns whether two tensors have the same storage and the ranges from their first to their last
/// element overlap. Tensors that interleave, such as two columns of a matrix, also count as sharing
/// memory. Returns false if either is undefined, has no elements or has no storage.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace lathe
