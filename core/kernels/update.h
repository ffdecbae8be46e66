// One optimizer step, in three parts that never wait for each other on the host. The first computes
// the sum of the squares of all gradients, which is finite exactly if every gradient is. The second
// makes one decision (skip or not, clipping, loss scale, bias corrections). The third unscales,
// clips, updates and writes the low-precision copy. Shared state is in StepControl and ScaleState,
// on the parameters' device.
//
// The moving average (optim.ema_decay) is the last tensor of each slot's state, so checkpoints,
// resuming and plans include it.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/rng.h"

namespace lathe {

/// An optimizer's constants for one step. `kind` is a position in the table of rules
/// (core/kernels/rules.h), whose files have the formulas.
struct UpdateRule {
  int32_t kind = 0;
  bool nesterov = false, centered = false, amsgrad = false;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, momentum = 0, dampening = 0, alpha = 0,
         lr_decay = 0, initial_accumulator = 0, momentum_decay = 0;
  /// Each element of the unscaled gradient is clamped to +- this; 0: no clamping.
  double clip_value = 0;
  double clip_parameter = 0;  ///< largest norm of a parameter's unscaled gradient; 0: no limit
  double average_decay = 0;   ///< of UpdateArgs::average
};

/// How a loss scale changes: torch.amp.GradScaler's rule, with conditions that end the run.
/// Micikevicius et al. 2018, section 3.2.
struct ScalePolicy {
  bool dynamic = true;          ///< false: the scale never changes
  double growth_factor = 2;     ///< after growth_interval clean steps
  double backoff_factor = 0.5;  ///< after a step with a non-finite gradient
  int64_t growth_interval = 2000;
  double min_scale = 1;    ///< a skip that would lower the scale below it ends the run
  int64_t max_skips = 50;  ///< this many consecutive skips end the run
};

/// The state of a loss scale.
struct ScaleState {
  float scale = 65536;
  int32_t growth_tracker = 0;  ///< clean steps since the scale last changed
  int64_t skipped = 0;         ///< skipped steps in total
  int64_t skipped_in_row = 0;  ///< skipped steps since the last one that was not skipped
};

/// The decision of the last step and the counts of all steps.
struct StepControl {
  int64_t updates = 0;  ///< applied updates; a skipped step does not count
  /// The step that ended the run, counted from 1; 0: none. Nothing is updated after it.
  int64_t failed_step = 0;
  // Of the last step:
  int64_t skip = 0;              ///< 1: its update is not applied
  double grad_norm = 0;          ///< of the unscaled gradients, before clipping
  double grad_scale = 1;         ///< factor of the gradients: unscaling and clipping together
  double loss_scale = 1;         ///< of its gradients
  double correction1 = 1;        ///< Adam: 1 - beta1^updates
  double correction2 = 1;        ///< Adam: sqrt(1 - beta2^updates)
  uint64_t moved = 0, lost = 0;  ///< elements of low-precision parameters whose update is not zero,
                                 ///< and those of them that rounding left unchanged
  // NAdam: the momenta of the last update and of the next, and the product of all momenta so far,
  // which is saved.
  double mu = 0, next_mu = 0, mu_product = 1;
};

/// The inputs of a step's decision; see decide_cpu().
struct StepRequest {
  UpdateRule rule;
  double clip = 0;   ///< largest norm of all gradients together; 0: no clipping
  int64_t step = 0;  ///< from 0
  ScalePolicy policy;
};

/// One parameter. Pointers are contiguous, or null if absent. State is in float64 if the parameter
/// is, otherwise in float32, at the indices that its rule gives it.
struct UpdateArgs {
  void* param = nullptr;
  const void* grad = nullptr;  ///< null: zeros
  void* state[4] = {nullptr, nullptr, nullptr, nullptr};
  void* low = nullptr;  ///< working copy, written as the parameter rounded to nearest
  /// Moving average of the parameter, of state's type: the parameter itself after the first update,
  /// then average_decay average + (1 - average_decay) parameter.
  void* average = nullptr;
  /// Partial sums of squares of the whole parameter's gradient, for clip_parameter, and their
  /// number.
  const double* sums = nullptr;
  int64_t chunks = 0;
  int64_t n = 0;
  int64_t first = 0;  ///< index in the parameter of the first of these n elements
  double weight_decay = 0;
  double lr_scale = 1;  ///< times the rule's learning rate
  RngKey key;           ///< for stochastic rounding
  Element param_type = Element::f32, grad_type = Element::f32, low_type = Element::bf16;
  bool stochastic =
      false;  ///< bf16 parameters: round up or down with a probability given by the distances
};

/// Returns the type of a parameter's state, and of the arithmetic of its update.
constexpr Element state_type(Element param_type) {
  return param_type == Element::f64 ? Element::f64 : Element::f32;
}

/// Returns the update of elements [begin, end) of `all`. Its `state` still has the addresses of
/// `all`, and the caller must replace them: one element of a state may belong to several elements
/// of the parameter.
inline UpdateArgs part_of(const UpdateArgs& all, int64_t begin, int64_t end) {
  UpdateArgs part = all;
  part.param = element_at(all.param, all.param_type, begin);
  part.grad = element_at(all.grad, all.grad_type, begin);
  part.low = element_at(all.low, all.low_type, begin);
  part.average = element_at(all.average, state_type(all.param_type), begin);
  part.n = end - begin;
  part.first = all.first + begin;
  return part;
}

/// One gradient. Contiguous.
struct GradArgs {
  const void* grad = nullptr;
  Element type = Element::f32;
  int64_t n = 0;
};

/// Elements that one partial sum covers.
constexpr int64_t grad_sum_chunk = 1 << 15;
/// Returns the number of chunks of a gradient of n elements.
constexpr int64_t grad_sum_chunks(int64_t n) { return (n + grad_sum_chunk - 1) / grad_sum_chunk; }
/// Returns the sum of squares, in float64, of elements [begin, end).
double grad_sum_cpu(const void* grad, Element type, int64_t begin, int64_t end);
/// Sums the partial sums and decides the step. `scale` and `loss` (one float) may be null. Without
/// a scale a non-finite gradient or loss ends the run.
void decide_cpu(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                StepControl* control, ScaleState* scale);
/// Decides whether one gradient is applied, in a step that updates each parameter as soon as its
/// gradient exists (memory.update_in_backward). It is applied if its sums are finite and no step
/// has failed.
void decide_gradient_cpu(const double* partials, int64_t n, StepControl* control);
/// Ends such a step: records the norm of all gradients, and a failed step if the norm or the loss,
/// which may be null, is not finite.
void end_stages_cpu(int64_t step, const double* partials, int64_t n, const float* loss,
                    StepControl* control);
/// Updates elements [begin, end). Several threads may update parts of one parameter.
void update_cpu(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin,
                int64_t end);

}  // namespace lathe
