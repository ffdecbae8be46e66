// Rows of the op table, and their checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "core/mode.h"
#include "tests/support/catch.h"

namespace lathe::test {

/// An input of an op: random values in [low, high]. `grad`: whether a gradient is checked.
struct Input {
  std::vector<int64_t> shape;
  double low = -2, high = 2;
  bool grad = true;
};

/// A row of the op table.
struct OpCase {
  std::string op;     ///< its OpInfo::name
  std::string label;  ///< distinguishes the rows of an op
  std::vector<Input> inputs;
  std::function<Variable(const std::vector<Variable>&)> ours;
  std::function<at::Tensor(const std::vector<at::Tensor>&)>
      oracle;               ///< the same through LibTorch's own autograd
  bool second = true;       ///< second derivatives are checked
  bool differences = true;  ///< central differences apply (not across a kink)
  bool exact = true;  ///< false if the op rounds inputs of any dtype to bf16 or less; it is then
                      ///< checked only at bf16's spacing
  double low_scale =
      4;  ///< error in bf16/fp16, in units of the format's spacing times the result's largest value
};

/// Returns all rows. Each op has at least one.
const std::vector<OpCase>& op_table();
/// Return the rows of one family each. op_table() includes them.
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
/// Returns the device of the first input, or the CPU if that is undefined.
inline at::Device device_of(const std::vector<Variable>& inputs) {
  return inputs[0].defined() ? inputs[0].data().device() : at::Device(at::kCPU);
}
/// The state with which ops that draw random numbers are tested.
constexpr StepRandom step_random{.seed = 7, .step = 3, .first_sample = 5};

/// Returns the float64 inputs of a row, the same ones each time.
std::vector<at::Tensor> inputs_of(const OpCase& row);
/// Returns the same inputs in a dtype, as parameters if Input::grad is set and else as constants.
std::vector<Variable> variables_of(const OpCase& row, at::ScalarType dtype);
/// Runs all checks of a row; returns what failed, one sentence each.
std::vector<std::string> check_op(const OpCase& row);

}  // namespace lathe::test
