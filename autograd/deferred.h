// Implements automatic fusion. Elementwise ops, sums of rows and softmax are recorded first and run
// later, so that consecutive ops can run as one op.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/op.h"
#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

class DeferredTrace;

namespace detail {

/// While this object exists, defers the ops of this thread that fused() supports; see deferred().
class DeferOps : public ModeGuard {
 public:
  /// Ops whose results have fewer elements run immediately: recording them would cost more than
  /// fusing them saves.
  static constexpr int64_t min_deferred_elements = 16384;

  /// Defers ops whose results have at least `least` elements, except ops with a constant operand
  /// that shares memory with a tensor in `changing`. `least` must be at least 1.
  explicit DeferOps(int64_t least = min_deferred_elements, std::vector<at::Tensor> changing = {});
  /// Drops the ops that have not run. Their results then have no elements.
  ~DeferOps();
  DeferOps(const DeferOps&) = delete;
  DeferOps& operator=(const DeferOps&) = delete;

  /// Records an op and returns its result. Returns an undefined Variable if the op must run
  /// immediately.
  Variable record(const ChainForm& form, const OpInfo& info, std::span<const Variable> inputs);
  /// Runs the ops that were recorded.
  void compute();

 private:
  Variable record_on_cpu(const ChainForm& form, const OpInfo& info,
                         std::span<const Variable> inputs);

  bool reads_changing(const ChainForm& form, std::span<const Variable> inputs) const;

  const int64_t least_;
  const std::vector<at::Tensor> changing_;
  const Mode mode_;  // the mode in which the recorded ops run
  std::unique_ptr<DeferredTrace> trace_;
};

}  // namespace detail

/// Counts of the ops that deferred() has fused.
struct FusionCount {
  int64_t ops = 0;    ///< ops that became part of a fused op
  int64_t fused = 0;  ///< fused ops that replaced these ops
};
/// Returns the counts of this thread since it started.
FusionCount fusion_count();

/// Returns f() and fuses its elementwise ops, sums and means of rows, and softmax. Each op is
/// recorded when it is called. The recorded ops run when f() returns. They run earlier if one of
/// their values is read, if an op that can't be recorded is called, if an op whose result has
/// another shape is called (results with one element per row may be recorded too), or if 64 values
/// are recorded. Results that still have handles at that time are stored, and so are results on
/// which several stored results depend. If gradients would otherwise be added in another order than
/// without deferred(), all results are stored. The remaining ops run inside the op "fused"
/// (autograd/fused.h) of the stored result that depends on them. The following ops run as they do
/// without deferred(): an op that can't be combined with another one, an op with a small result, an
/// op that fused() does not support, and all ops while they are observed or recomputed. `changing`
/// lists tensors that f() may change in place; an op with a constant operand that shares memory
/// with one of these tensors also runs as it does without deferred().
///
/// A temporary lives until the end of its expression: matmul(tanh(exp(x)), w) runs while exp(x)
/// still has a handle, so exp(x) is stored. After the statement `y = tanh(exp(x))`, exp(x) has no
/// handle, so matmul(y, w) does not store it.
///
/// Values and gradients have the same bits as if the ops ran one by one (NaNs may differ in their
/// payload); second derivatives agree up to rounding. Before an op has run, its input tensors must
/// not be changed in place through a handle that is not a Variable; otherwise, the op throws when
/// it runs.
template <std::invocable F>
auto deferred(const F& f, std::vector<at::Tensor> changing = {})
    -> std::decay_t<std::invoke_result_t<const F&>> {
  detail::DeferOps ops(detail::DeferOps::min_deferred_elements, std::move(changing));
  auto result = f();
  ops.compute();
  return result;
}

}  // namespace lathe
