// Declares functions that create constants. `options` is a dtype, a device, or both: `zeros({2, 3},
// at::kDouble)`. The default is float32 on the CPU. To create a parameter: `randn({2, 3},
// seed).requires_grad_()`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Returns zeros of shape `sizes`. Throws if a size is negative.
Variable zeros(at::IntArrayRef sizes, at::TensorOptions options = {});
/// Returns ones of shape `sizes`.
Variable ones(at::IntArrayRef sizes, at::TensorOptions options = {});
/// Returns a tensor of shape `sizes` filled with `value`.
Variable full(at::IntArrayRef sizes, double value, at::TensorOptions options = {});
/// Returns start, start + step, ... below end (above it for a negative step). Throws if step is 0,
/// or if step and end - start have opposite signs.
Variable arange(double start, double end, double step = 1, at::TensorOptions options = {});
/// Returns 0, 1, ... below end.
Variable arange(double end, at::TensorOptions options = {});
/// Returns n evenly spaced values from start to end, including both. n must be at least 1.
Variable linspace(double start, double end, int64_t n, at::TensorOptions options = {});
/// Returns normally distributed random numbers with mean 0 and standard deviation 1, drawn in
/// float32. The same seed gives the same numbers; on another instruction set, the last bit of a
/// number may differ.
Variable randn(at::IntArrayRef sizes, uint64_t seed, at::TensorOptions options = {});
/// Returns a tensor [..., classes] that is 1 at the index of each id and 0 elsewhere. `ids` is
/// int64 [...], with values in [0, classes). The default device is the device of `ids`. Call this
/// function as lathe::one_hot in files that also include ATen's one_hot, which returns an int64
/// tensor.
Variable one_hot(const at::Tensor& ids, int64_t classes, at::TensorOptions options = {});

/// Converts nested braces of numbers to an argument of tensor().
class Nested {
 public:
  template <class N>
    requires std::is_arithmetic_v<N>
  Nested(N number) : values_{static_cast<double>(number)} {}
  Nested(std::initializer_list<Nested> rows);

  const std::vector<double>& values() const { return values_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  std::vector<double> values_;
  std::vector<int64_t> sizes_;
};
/// Returns a tensor of the given numbers: tensor({{1, 2}, {3, 4}}) is [2, 2], tensor(3) is [].
/// Throws if rows differ in shape.
Variable tensor(const Nested& values, at::TensorOptions options = {});

}  // namespace lathe
