// What a tensor is, in words: for looking at one in a debugger or a log.
#pragma once

#include <string>

#include "autograd/variable.h"

namespace lathe {

/// "float32[3,2], strides [1,3], not contiguous, elements 0 to 5 of a storage of 24 bytes on cpu
/// that 2 tensors hold". Strides and places are in elements; a tensor without elements says so
/// instead of places.
std::string tensor_facts(const at::Tensor& t);
/// The same, and what it is a view of or was made by, as far as its graph knows: "a view, by
/// transpose of the parameter w". It is called a view where other tensors hold its memory too, or
/// it leaves some of that out.
std::string tensor_facts(const Variable& x);
/// Whether two tensors share memory, in whole or in part: the same storage, and places that overlap
/// as ranges.
bool shares_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace lathe
