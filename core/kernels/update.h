// Declares an optimizer step, which has three parts. The host does not wait for a GPU between the
// parts. The first part computes the sum of squares of all gradients, which is finite only if every
// gradient is finite. The second part decides whether the step is skipped, and computes the factor
// of the gradients, the loss scale and the bias corrections. The third part unscales and clips
// gradients, updates parameters and writes their low-precision copies. StepControl and ScaleState
// hold the state that the parts share. Both are on the device of the parameters.
//
// The moving average of a parameter (optim.ema_decay) is the last tensor of the parameter's
// optimizer state. Checkpoints, resuming and plans therefore include the average.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/rng.h"

namespace lathe {

/// An optimizer's constants for one step. `kind` is a position in the table of rules
/// (core/kernels/rules.h). The files of the rules contain the formulas.
struct UpdateRule {
  int32_t kind = 0;
  bool nesterov = false, centered = false, amsgrad = false;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, momentum = 0, dampening = 0, alpha = 0,
         lr_decay = 0, initial_accumulator = 0, momentum_decay = 0;
  /// Each element of the unscaled gradient is clamped to [-clip_value, clip_value]; 0: no clamping.
  double clip_value = 0;
  double clip_parameter = 0;  ///< largest norm of a parameter's unscaled gradient; 0: no limit
  double average_decay = 0;   ///< decay factor of UpdateArgs::average
};

/// Determines how a loss scale changes (Micikevicius et al. 2018, section 3.2). The scale changes
/// as in torch.amp.GradScaler. Unlike there, min_scale and max_skips can end the run.
struct ScalePolicy {
  bool dynamic = true;          ///< false: the scale never changes
  double growth_factor = 2;     ///< factor of the scale after growth_interval steps without a skip
  double backoff_factor = 0.5;  ///< factor of the scale after a step with a non-finite gradient
  int64_t growth_interval = 2000;
  double min_scale = 1;    ///< a skip that would lower the scale below this number ends the run
  int64_t max_skips = 50;  ///< this many consecutive skips end the run
};

/// The state of a loss scale.
struct ScaleState {
  float scale = 65536;
  int32_t growth_tracker = 0;  ///< applied steps since the scale last changed
  int64_t skipped = 0;         ///< skipped steps in total
  int64_t skipped_in_row = 0;  ///< consecutive skipped steps up to now
};

/// The decision of the last step and the counts of all steps.
struct StepControl {
  int64_t updates = 0;  ///< number of applied updates, without skipped steps
  /// The step that ended the run, counted from 1; 0: none. No parameter is updated after this step.
  int64_t failed_step = 0;
  // The following members describe the last step.
  int64_t skip = 0;              ///< 1: the update of the step is not applied
  double grad_norm = 0;          ///< norm of the unscaled gradients before clipping
  double grad_scale = 1;         ///< factor of the gradients: unscaling and clipping together
  double loss_scale = 1;         ///< loss scale with which the gradients of the step were computed
  double correction1 = 1;        ///< Adam: 1 - beta1^updates
  double correction2 = 1;        ///< Adam: sqrt(1 - beta2^updates)
  uint64_t moved = 0, lost = 0;  ///< moved: number of elements of low-precision parameters whose
                                 ///< update is not zero; lost: number of those elements that
                                 ///< rounding left unchanged
  // For NAdam: the momentum of the last update, the momentum of the next update, and the product of
  // all momenta so far. Checkpoints save the product.
  double mu = 0, next_mu = 0, mu_product = 1;
};

/// The inputs of a step's decision; see decide_cpu().
struct StepRequest {
  UpdateRule rule;
  double clip = 0;   ///< largest norm of all gradients together; 0: no clipping
  int64_t step = 0;  ///< index of the step, from 0
  ScalePolicy policy;
};

/// The update of one parameter or of a part of a parameter. Pointers are to contiguous arrays of n
/// elements, which this object does not own. A pointer is null if the array is absent. States are
/// float64 if the parameter is float64, otherwise float32. RuleState::place is the index of a state
/// in `state`.
struct UpdateArgs {
  void* param = nullptr;
  const void* grad = nullptr;  ///< null: zeros
  void* state[4] = {nullptr, nullptr, nullptr, nullptr};
  void* low = nullptr;  ///< working copy, which receives the parameter rounded to nearest
  /// Moving average of the parameter, in the type of the states. The first update sets it to the
  /// parameter, and later updates set it to average_decay average + (1 - average_decay) parameter.
  void* average = nullptr;
  /// For clip_parameter: the partial sums of squares of the complete parameter's gradient, and the
  /// number of these sums.
  const double* sums = nullptr;
  int64_t chunks = 0;
  int64_t n = 0;
  int64_t first = 0;  ///< the index of the first of these n elements within the parameter
  double weight_decay = 0;
  double lr_scale = 1;  ///< factor of the rule's learning rate
  RngKey key;           ///< key of the random numbers for stochastic rounding
  Element param_type = Element::f32, grad_type = Element::f32, low_type = Element::bf16;
  bool stochastic = false;  ///< whether a bfloat16 parameter is rounded stochastically
};

/// Returns the type of a parameter's states. The parameter's update is computed in the same type.
constexpr Element state_type(Element param_type) {
  return param_type == Element::f64 ? Element::f64 : Element::f32;
}

/// Returns the update of elements [begin, end) of `all`. The `state` of the result still holds the
/// addresses that `all` has. The caller must replace these addresses, since one element of a state
/// may belong to several elements of the parameter.
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

/// A gradient: a contiguous array of n elements, which this object does not own.
struct GradArgs {
  const void* grad = nullptr;
  Element type = Element::f32;
  int64_t n = 0;
};

/// The number of elements in a chunk, which has one partial sum.
constexpr int64_t grad_sum_chunk = 1 << 15;
/// Returns the number of chunks of a gradient of n elements.
constexpr int64_t grad_sum_chunks(int64_t n) { return (n + grad_sum_chunk - 1) / grad_sum_chunk; }
/// Returns the sum of squares of elements [begin, end), computed in float64.
double grad_sum_cpu(const void* grad, Element type, int64_t begin, int64_t end);
/// Adds the n partial sums, and writes the decision of the step to `control`. `scale` and `loss`
/// (one float) may be null. If `scale` is null, a non-finite gradient or loss ends the run.
void decide_cpu(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                StepControl* control, ScaleState* scale);
/// Decides whether one gradient is applied, in a step that updates each parameter as soon as its
/// gradient exists (memory.update_in_backward). The gradient is applied if its sums are finite and
/// no step has failed.
void decide_gradient_cpu(const double* partials, int64_t n, StepControl* control);
/// Ends a step that called decide_gradient_cpu(). Records the norm of all gradients. If the norm or
/// the loss is not finite, also records that the step failed. `loss` may be null.
void end_stages_cpu(int64_t step, const double* partials, int64_t n, const float* loss,
                    StepControl* control);
/// Updates elements [begin, end) unless control->skip is set. Several threads may update different
/// parts of one parameter.
void update_cpu(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin,
                int64_t end);

}  // namespace lathe
