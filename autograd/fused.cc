#include "autograd/fused.h"

#include <exception>
#include <optional>

#include "autograd/chain_op.h"
#include "autograd/chain_trace.h"
#include "autograd/deferred.h"
#include "core/mode.h"

namespace lathe {
namespace {

/// The recorded ops of a function, and the index of the value that the function returned.
struct TracedFunction {
  ChainTrace trace;
  int result = 0;
};

/// Records a function. Returns nullopt if it must run op by op. Ops that do not depend on the
/// recorded values do run while recording; with `silent`, observers and recomputations are not
/// notified of them.
std::optional<TracedFunction> traced(std::span<const Variable> inputs,
                                     const detail::FusedFunction& fn, bool silent) {
  const auto uses = mode().uses != nullptr ? std::optional(*mode().uses) : std::nullopt;
  const auto flops = mode().flops != nullptr ? std::optional(*mode().flops) : std::nullopt;
  std::optional<TracedFunction> found;
  try {
    ChainTrace trace(inputs);
    const ModeGuard guard;
    mode().chain = &trace;
    if (silent) {
      mode().observers = nullptr;
      mode().recording = nullptr;
      mode().replaying = nullptr;
    }
    const int result = trace.result(fn(trace.arguments()));
    found.emplace(std::move(trace), result);
  } catch (const ChainAbandoned&) {
    // The function must run op by op.
  } catch (const std::exception&) {
    // For example, fn read a value, which traced tensors do not have. The caller runs fn again, op
    // by op, so that a real error is thrown again.
  }

  if (!found || silent) {
    if (uses) *mode().uses = *uses;
    if (flops) *mode().flops = *flops;
  }
  return found;
}

}  // namespace

Variable detail::run_fused(std::span<const Variable> inputs, const FusedFunction& fn) {
  // Inside another fused(), the ops belong to the outer chain.
  if (mode().chain != nullptr) return fn(inputs);
  if (has_deferred_ops) compute_deferred();

  // Observers and recomputations must not see the ops of a trace that is abandoned. So try a silent
  // trace first.
  const Mode& m = mode();
  const bool is_watched =
      m.observers != nullptr || m.recording != nullptr || m.replaying != nullptr;
  if (is_watched && !traced(inputs, fn, /*silent=*/true)) return fn(inputs);
  if (const auto found = traced(inputs, fn, /*silent=*/false)) {
    const ChainTrace& trace = found->trace;
    return apply_chain(trace.formula(), trace.inputs(), found->result, trace.sizes(), trace.cost());
  }
  return fn(inputs);
}

}  // namespace lathe
