// Declares the rows of the op table, and their checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "core/mode.h"
#include "tests/support/catch.h"

namespace lathe::test {

/// An input of an op, with random values in [low, high]. `grad`: whether its gradient is checked.
struct Input {
  std::vector<int64_t> shape;
  double low = -2, high = 2;
  bool grad = true;
};

/// A row of the op table.
struct OpCase {
  std::string op;     ///< the OpInfo::name of the op
  std::string label;  ///< distinguishes the rows of an op
  std::vector<Input> inputs;
  std::function<Variable(const std::vector<Variable>&)> ours;
  std::function<at::Tensor(const std::vector<at::Tensor>&)>
      oracle;               ///< the same function of LibTorch, with its own autograd
  bool second = true;       ///< whether second derivatives are checked
  bool differences = true;  ///< whether gradients are compared with central differences, which
                            ///< are wrong across a kink
  bool exact = true;     ///< false if the op rounds inputs of any dtype to bf16 or less; errors of
                         ///< bf16's spacing are then allowed in every dtype
  double low_scale = 4;  ///< the error that the check in a dtype allows, in units of the dtype's
                         ///< spacing times the largest value of the result
};

/// Returns all rows. Each op has at least one row.
const std::vector<OpCase>& op_table();
/// Return the rows of one family of ops each. op_table() includes them.
std::vector<OpCase> image_and_cell_rows();
std::vector<OpCase> math_rows();
std::vector<OpCase> shape_rows();
std::vector<OpCase> layer_rows();
std::vector<OpCase> loss_rows();

/// Return an int64 tensor, 1-D or of the given shape.
inline at::Tensor longs(const std::vector<int64_t>& values) {
  return torch::tensor(values, at::kLong);
}
inline at::Tensor longs(const std::vector<int64_t>& values, at::IntArrayRef shape,
                        at::Device device = at::kCPU) {
  return longs(values).reshape(shape).to(device);
}
/// Returns the device of the first input, or the CPU if that input is undefined.
inline at::Device device_of(const std::vector<Variable>& inputs) {
  return inputs[0].defined() ? inputs[0].data().device() : at::Device(at::kCPU);
}
/// The random state for tests of ops that draw random numbers.
constexpr StepRandom step_random{.seed = 7, .step = 3, .first_sample = 5};

/// Returns the float64 inputs of a row, with the same values in each call.
std::vector<at::Tensor> inputs_of(const OpCase& row);
/// Returns the same inputs in a dtype, as parameters if Input::grad is set and else as constants.
std::vector<Variable> variables_of(const OpCase& row, at::ScalarType dtype);
/// Runs all checks of a row, and returns a sentence for each check that failed.
std::vector<std::string> check_op(const OpCase& row);

}  // namespace lathe::test
