// Defines the parts of an optimizer step other than the rules' formulas, for both CPUs and GPUs.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/kernels/rules.h"
#include "core/kernels/update.h"

namespace lathe {

/// Changes a loss scale after a step. `found_inf` is true if a gradient or the loss is not finite.
/// Returns whether this step ends the run.
LATHE_BOTH inline bool move_scale(ScaleState& s, const ScalePolicy& policy, bool found_inf) {
  if (!found_inf) {
    s.skipped_in_row = 0;
    if (policy.dynamic && ++s.growth_tracker >= policy.growth_interval) {
      const auto grown = static_cast<float>(s.scale * policy.growth_factor);
      if (std::isfinite(grown)) s.scale = grown;
      s.growth_tracker = 0;
    }
    return false;
  }
  ++s.skipped;
  if (++s.skipped_in_row >= policy.max_skips) return true;
  if (!policy.dynamic) return false;
  s.growth_tracker = 0;
  const auto less = static_cast<float>(s.scale * policy.backoff_factor);
  if (less < policy.min_scale) return true;
  s.scale = less;
  return false;
}

/// Decides whether a step is skipped, and computes the factor of its gradients and the bias
/// corrections. `sum` is the sum of squares of the gradients, which still include the loss scale.
/// Clips as torch.nn.utils.clip_grad_norm_ does.
LATHE_BOTH inline void settle(const StepRequest& r, double sum, const float* loss, StepControl& c,
                              ScaleState* scale) {
  const double loss_scale = scale != nullptr ? static_cast<double>(scale->scale) : 1.0;
  const bool found_inf = !std::isfinite(sum) || (loss != nullptr && !std::isfinite(*loss));
  c.loss_scale = loss_scale;
  c.grad_norm = std::sqrt(sum) / loss_scale;
  const double clip = r.clip > 0 ? r.clip / (c.grad_norm + 1e-6) : 1.0;
  c.grad_scale = (clip < 1 ? clip : 1.0) / loss_scale;
  c.moved = c.lost = 0;
  c.skip = found_inf || c.failed_step != 0;
  if (c.failed_step != 0) return;
  if (scale != nullptr ? move_scale(*scale, r.policy, found_inf) : found_inf)
    c.failed_step = r.step + 1;
  if (c.skip) return;
  ++c.updates;
  const auto t = static_cast<double>(c.updates);
  c.correction1 = 1 - std::pow(r.rule.beta1, t);
  c.correction2 = std::sqrt(1 - std::pow(r.rule.beta2, t));
  with_rule(r.rule.kind, [&](auto rule) { decltype(rule)::settle(r.rule, c); });
}

/// Decides whether a gradient is applied, in a step that updates each parameter as soon as its
/// gradient exists (memory.update_in_backward). `sum` is the sum of the gradient's squares.
LATHE_BOTH inline void settle_gradient(double sum, StepControl& c) {
  c.skip = c.failed_step != 0 || !std::isfinite(sum);
}

/// Ends a step that called settle_gradient(). `sum` is the sum of squares of all gradients. Records
/// the norm of all gradients. If the norm or the loss is not finite, also records that the step
/// failed.
LATHE_BOTH inline void settle_stages(int64_t step, double sum, const float* loss, StepControl& c) {
  c.skip = c.failed_step != 0;
  if (c.skip) return;
  c.grad_norm = std::sqrt(sum);
  // `skip` stays 0 if this step fails, since the averages of parameters without a gradient are
  // still updated.
  if (!std::isfinite(sum) || (loss != nullptr && !std::isfinite(*loss))) c.failed_step = step + 1;
}

/// Returns the factor by which a parameter's gradient is multiplied: c.grad_scale times the factor
/// that clips the norm of this gradient to clip_parameter.
LATHE_BOTH inline double grad_scale_of(const UpdateRule& r, const UpdateArgs& a,
                                       const StepControl& c) {
  if (!(r.clip_parameter > 0) || a.sums == nullptr) return c.grad_scale;
  double sum = 0;
  for (int64_t i = 0; i < a.chunks; ++i) sum += a.sums[i];
  const double clip = r.clip_parameter / (std::sqrt(sum) / c.loss_scale + 1e-6);
  return (clip < 1 ? clip : 1.0) * c.grad_scale;
}

/// Returns a rule's constants for one parameter.
template <class Rule, class T>
LATHE_BOTH Coefficients<T> coefficients(const UpdateRule& r, const UpdateArgs& a,
                                        const StepControl& c) {
  Coefficients<T> k(r, a, c, Rule::decoupled, grad_scale_of(r, a, c));
  Rule::prepare(k, r, a, c);
  return k;
}

/// Rounds a float32, given by its bits, to bfloat16 stochastically. Adds `random16`, a uniform
/// 16-bit number, to the lower 16 bits, and returns the upper 16 bits. The probability of rounding
/// away from zero is therefore the lower half divided by 2^16. Nothing is added to infinity and
/// NaN.
LATHE_BOTH inline uint16_t round_stochastic(uint32_t bits, uint32_t random16) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return static_cast<uint16_t>((bits + (finite ? random16 : 0)) >> 16);
}

/// Returns the 16 random bits of element i, given the words of Philox block i / 8.
template <class Words>
LATHE_BOTH inline uint32_t random16(const Words& words, int64_t i) {
  return (words[(i % 8) / 2] >> (16 * (i % 2))) & 0xffffu;
}

}  // namespace lathe
