// Constants to begin with. `options` is a dtype, a device, or both: `zeros({2, 3}, at::kDouble)`;
// float32 on the CPU unless it says otherwise. For a parameter: `randn({2, 3},
// seed).requires_grad_()`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// `sizes` zeros. An error for a negative size.
Variable zeros(at::IntArrayRef sizes, at::TensorOptions options = {});
/// The same of ones.
Variable ones(at::IntArrayRef sizes, at::TensorOptions options = {});
/// The same of `value`.
Variable full(at::IntArrayRef sizes, double value, at::TensorOptions options = {});
/// start, start + step, ... below end (above it for a negative step).
Variable arange(double start, double end, double step = 1, at::TensorOptions options = {});
/// 0, 1, ... below end.
Variable arange(double end, at::TensorOptions options = {});
/// n >= 1 values from start to end, both among them.
Variable linspace(double start, double end, int64_t n, at::TensorOptions options = {});
/// Normal numbers of mean 0 and deviation 1: the same for the same seed, on every machine. Drawn in
/// float32.
Variable randn(at::IntArrayRef sizes, uint64_t seed, at::TensorOptions options = {});
/// ids int64 [...], each in [0, classes) -> [..., classes], 1 at the id and 0 elsewhere. Say
/// lathe::one_hot where ATen's own, which gives an int64 tensor, is included too.
Variable one_hot(const at::Tensor& ids, int64_t classes, at::TensorOptions options = {});

/// Numbers in nested braces.
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
/// tensor({{1, 2}, {3, 4}}): [2, 2]; tensor(3): []. An error where rows differ in shape.
Variable tensor(const Nested& values, at::TensorOptions options = {});

}  // namespace lathe
