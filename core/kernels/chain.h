// Declares chains. A chain is a program of elementwise ops that runs block by block, so that each
// input is read from memory once and each output is written once. The blocks stay in the L1 cache.
// A chain may also sum rows and use the sums in further ops. In that case, its blocks consist of
// complete rows.
//
// On any number of threads, the results of a chain are bitwise equal to the results of its ops run
// one by one. Only the payload of NaNs may differ. Arithmetic follows IEEE 754, and a bfloat16
// value is rounded after each op. For functions such as exp(), a chain calls ATen's functions on
// tiles that begin where ATen's vectors would begin. Ops on rows are computed by the functions of
// core/kernels/row_ops.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace lathe {

/// The type of an input or output of a chain. Values within a chain are held in float32. bfloat16
/// values are rounded to bfloat16, and values of masks are 0 or 1.
enum class ChainType : uint8_t { f32, bf16, mask };

/// An op of a chain. In the following formulas, a, b and c are the operands that Step::from lists,
/// and s is Step::number.
enum class ChainOp : uint8_t {
  input,             ///< not an op: an input of the chain
  copy,              ///< a
  neg,               ///< -a
  reciprocal,        ///< 1 / a
  relu,              ///< max(a, 0)
  clamp,             ///< a within [-s, s]
  add,               ///< a + b; here and below, s is used instead of a missing b
  sub,               ///< a - b
  mul,               ///< a b
  div,               ///< a / b
  relu_grad,         ///< a where b > 0 or b is NaN, otherwise 0
  less,              ///< a < b, a mask
  less_equal,        ///< a <= b, a mask
  greater,           ///< a > b, a mask
  greater_equal,     ///< a >= b, a mask
  equal,             ///< a == b, a mask
  not_equal,         ///< a != b, a mask
  select,            ///< b where the mask a is 1, otherwise c
  fill,              ///< s where the mask a is 1, otherwise b
  keep,              ///< b where the mask a is 1, otherwise s
  row_sum,           ///< the sum of each row of a: one element per row
  row_mean,          ///< row_sum divided by s; used only in formulas (autograd/chain_formula.h)
  spread,            ///< repeats a, which has one element per row, along the rows
  softmax,           ///< applied to each row of a
  softmax_grad,      ///< gradient of softmax's input; a: gradient of the result, b: the result
  log_softmax,       ///< applied to each row of a
  log_softmax_grad,  ///< gradient of log_softmax's input; operands as for softmax_grad
  inverse_root,      ///< 1 / sqrt(a), bitwise equal to ATen's rsqrt() of float32
  // Ops whose names begin with own_ are Lathe's kernels. Their results may differ in bits from the
  // results of ATen's functions.
  own_tanh,
  own_silu,
  own_gelu,       ///< the tanh form
  own_tanh_grad,  ///< gradient of the input; a: gradient of the result, b: the result
  own_silu_grad,  ///< gradient of the input; a: gradient of the result, b: the input
  own_gelu_grad,  ///< operands as for own_silu_grad
  // Only ChainPlan creates the following five ops.
  sub_from,  ///< b - a
  div_into,  ///< b / a
  square,    ///< a a
  load,      ///< copies an input to a register and converts it to float32
  store,     ///< copies a register to an output and converts it to the type of the output
  // The following ops call ATen's functions. sqrt is one of these ops because ATen's square root is
  // not always correctly rounded.
  sqrt,
  rsqrt,
  exp,
  log,
  tanh,
  erf,
  sigmoid,
  silu,
  gelu,  ///< the tanh form
  gelu_exact,
  pow,              ///< a to the power of s
  tanh_grad,        ///< gradient of the input; a: gradient of the result, b: the result
  sigmoid_grad,     ///< operands as for tanh_grad
  silu_grad,        ///< gradient of the input; a: gradient of the result, b: the input
  gelu_grad,        ///< operands as for silu_grad
  gelu_exact_grad,  ///< operands as for silu_grad
};

/// Returns whether the op calls one of ATen's functions.
constexpr bool calls_aten(ChainOp op) { return op >= ChainOp::sqrt; }

/// Returns whether the op needs a complete row of its operands to compute a row of its result.
constexpr bool needs_rows(ChainOp op) {
  return op >= ChainOp::row_sum && op <= ChainOp::log_softmax_grad;
}

/// A program of elementwise ops. Values have numbers: first the inputs, then the results of steps.
/// If the chain has rows, a value has either as many elements as the chain or one element per row.
class Chain {
 public:
  /// The layout of an input; see add_input().
  struct Input {
    ChainType type = ChainType::f32;
    int64_t inner = 1;
    int64_t size = 0;
    bool per_row = false;
  };
  /// An op with its operands; see ChainOp and add_step(). `from` holds the values of the operands
  /// a, b and c; -1: no operand.
  struct Step {
    ChainOp op = ChainOp::copy;
    std::array<int, 3> from{-1, -1, -1};
    double number = 0;
    bool low = false;
  };

  /// Creates a chain whose elements form rows of `columns` elements. If `columns` is 0, the chain
  /// has no rows.
  explicit Chain(int64_t columns = 0) : columns_(columns) {}

  /// Adds an input and returns its number. All inputs must be added before the first step. If
  /// `size` is 0, the input has as many elements as the chain. Otherwise element i of the chain
  /// reads element (i / inner) % size of the input. For a row, `inner` is 1; for a column, `inner`
  /// is the stride of its dim; for a single number, `size` is 1. If `per_row` is true, the input
  /// has one element for each row.
  int add_input(const Input& input);
  /// Adds an op and returns the number of its result. If Step::low is true, the result is rounded
  /// to bfloat16. The result has one element per row if all operands have one element per row.
  /// Otherwise, operands with one element per row are first repeated along the rows.
  int add_step(Step step);
  /// Makes the result of a step an output of this type, which is f32 or bf16. The type must be able
  /// to represent the elements of the result.
  void add_output(int value, ChainType type);

  /// Computes n elements, which must be complete rows if the chain has rows. Inputs and outputs are
  /// contiguous, in the order in which they were added, at any alignment; they must not overlap.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t n) const;

 private:
  friend class ChainPlan;
  friend class ChainRun;
  struct Output {
    int value = 0;
    ChainType type = ChainType::f32;
  };
  bool is_per_row(int value) const { return per_row_[static_cast<size_t>(value)]; }

  int64_t columns_;
  std::vector<Input> inputs_;
  std::vector<Step> steps_;
  std::vector<bool> per_row_;     // whether each value has one element per row
  std::map<int, int> spread_of_;  // maps a value with one element per row to its repetition along
                                  // the rows (`spread`)
  std::vector<Output> outputs_;
};

}  // namespace lathe
