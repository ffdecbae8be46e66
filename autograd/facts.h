// Descriptions of tensors for debuggers and logs.
#pragma once

#include <string>

#include "autograd/variable.h"

namespace lathe {

/// Returns a description such as "float32[3,2], strides [1,3], not contiguous, elements 0 to 5 of a
/// storage of 24 bytes on cpu that 2 tensors hold". Strides and positions are in elements. The
/// description of an empty tensor has "no elements" in place of the positions.
std::string tensor_facts(const at::Tensor& t);
/// Adds what it is a view of or was made by, as far as its graph records that: "a view, by
/// transpose of the parameter w". It is called a view if other tensors hold its memory too, or if
/// it covers only a part of that.
std::string tensor_facts(const Variable& x);
/// Returns whether two tensors share memory, fully or partly: whether they have the same storage,
/// and their ranges of elements overlap.
bool shares_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace lathe
