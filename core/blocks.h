// Declares in_blocks(), with which ATen's elementwise functions give the same bits on any number of
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace lathe {

/// An elementwise function of tensors of one shape. Writes the result to `out`, which has the shape
/// and dtype of the inputs, and returns it. If `out` is null, returns a new tensor.
using BlockFunction = std::function<at::Tensor(at::TensorList inputs, at::Tensor* out)>;

/// Returns a BlockFunction that calls ATen's function `name`, or its form name_out, with the given
/// arguments, among which t[0], t[1] and so on are the inputs.
#define LATHE_ATEN(name, ...)                                                        \
  [&](at::TensorList t, at::Tensor* to) {                                            \
    return to != nullptr ? at::name##_out(*to, __VA_ARGS__) : at::name(__VA_ARGS__); \
  }

/// Returns f(inputs). If the inputs are large float tensors on the CPU, f is called for blocks of a
/// fixed number of elements, each on one thread. ATen itself gives each thread an equal part of a
/// tensor. The last elements of a part do not fill a vector, and ATen computes them by another
/// function, so the bits of its result depend on the number of threads. If `out` is defined, the
/// result is written to `out`, which may be an input; otherwise to a new tensor.
at::Tensor in_blocks(const BlockFunction& f, at::TensorList inputs, const at::Tensor& out = {});

}  // namespace lathe
