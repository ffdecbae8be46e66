// Chains: programs of elementwise ops that run block by block, so that each input is read from
// memory once and each output written once. The blocks stay in the L1 cache. A chain may also sum
// rows and use the sums in further ops; its blocks then consist of complete rows.
//
// On any number of threads, a chain's results have the same bits as if its ops ran one by one.
// Arithmetic is that of IEEE 754, and a bfloat16 value is rounded after each op. Functions such as
// exp() are ATen's own, called on tiles that begin where ATen's vectors would. Ops on rows are
// those of core/kernels/row_ops.h. NaNs may differ in their payload.
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

/// An op of a chain. Its operands are a, b and c, which Step::from lists; s is Step::number.
enum class ChainOp : uint8_t {
  input,             ///< not an op: an input of the chain
  copy,              ///< a
  neg,               ///< -a
  reciprocal,        ///< 1 / a
  relu,              ///< max(a, 0)
  clamp,             ///< a within [-s, s]
  add,               ///< a + b; in this and the following ops, s replaces a missing b
  sub,               ///< a - b
  mul,               ///< a b
  div,               ///< a / b
  relu_grad,         ///< a where b > 0 or b is NaN, else 0
  less,              ///< a < b, a mask
  less_equal,        ///< a <= b, a mask
  greater,           ///< a > b, a mask
  greater_equal,     ///< a >= b, a mask
  equal,             ///< a == b, a mask
  not_equal,         ///< a != b, a mask
  select,            ///< b where the mask a holds, else c
  fill,              ///< s where the mask a holds, else b
  keep,              ///< b where the mask a holds, else s
  row_sum,           ///< the sum of each row of a: one element per row
  row_mean,          ///< row_sum divided by s; only in formulas (autograd/chain_formula.h)
  spread,            ///< a, which has one element per row, repeated along the rows
  softmax,           ///< of each row of a
  softmax_grad,      ///< the gradient of its input; a: that of the result, b: the result
  log_softmax,       ///< of each row of a
  log_softmax_grad,  ///< as softmax_grad
  inverse_root,      ///< 1 / sqrt(a), with the bits of ATen's rsqrt() of float32
  // Ops named own_ are Lathe's kernels, whose bits may differ from those of ATen's functions.
  own_tanh,
  own_silu,
  own_gelu,       ///< the tanh form
  own_tanh_grad,  ///< the gradient of the input; a: that of the result, b: the result
  own_silu_grad,  ///< the gradient of the input; a: that of the result, b: the input
  own_gelu_grad,  ///< as own_silu_grad
  // Only ChainPlan creates the following five ops.
  sub_from,  ///< b - a
  div_into,  ///< b / a
  square,    ///< a a
  load,      ///< an input, converted into a register
  store,     ///< a register, converted into an output
  // The following ops call ATen's functions. ATen's square root is not always correctly rounded, so
  // sqrt is among them.
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
  tanh_grad,        ///< the gradient of the input; a: that of the result, b: the result
  sigmoid_grad,     ///< as tanh_grad
  silu_grad,        ///< the gradient of the input; a: that of the result, b: the input
  gelu_grad,        ///< as silu_grad
  gelu_exact_grad,  ///< as silu_grad
};

/// Returns whether the op is one of ATen's functions.
constexpr bool calls_aten(ChainOp op) { return op >= ChainOp::sqrt; }

/// Returns whether the op computes each row of its result from a complete row.
constexpr bool needs_rows(ChainOp op) {
  return op >= ChainOp::row_sum && op <= ChainOp::log_softmax_grad;
}

/// A program of elementwise ops. Values are numbered: first the inputs, then the results of steps.
/// If the chain has rows, a value has either as many elements as the chain or one per row.
class Chain {
 public:
  /// The layout of an input; see add_input().
  struct Input {
    ChainType type = ChainType::f32;
    int64_t inner = 1;
    int64_t size = 0;
    bool per_row = false;
  };
  /// An op with its operands; see ChainOp and add_step(). `from`: the operands a, b and c, or -1.
  struct Step {
    ChainOp op = ChainOp::copy;
    std::array<int, 3> from{-1, -1, -1};
    double number = 0;
    bool low = false;
  };

  /// Creates a chain whose elements form rows of `columns` elements. 0: it has no rows.
  explicit Chain(int64_t columns = 0) : columns_(columns) {}

  /// Adds an input and returns its value. All inputs must be added before the first step. If `size`
  /// is 0, the input has as many elements as the chain. Otherwise element i of the chain takes
  /// element (i / inner) % size: for a row, `inner` is 1; for a column, `inner` is the stride of
  /// its dim; a single number has size 1. An input that is `per_row` has one element for each row.
  int add_input(const Input& input);
  /// Adds an op and returns the value of its result. If Step::low is true, the result is rounded to
  /// bfloat16. The result has one element per row if all operands do. Otherwise, operands with one
  /// element per row are first repeated along the rows.
  int add_step(Step step);
  /// Makes the result of a step an output of this type, which must be able to represent its values.
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
  std::vector<bool> per_row_;     // of each value
  std::map<int, int> spread_of_;  // from a value with one element per row to its `spread`
  std::vector<Output> outputs_;
};

}  // namespace lathe
