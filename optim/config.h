// The keys of [optim], and the settings of parameter groups.
//
// `dampening` has the same meaning as in torch: the velocity takes (1 - dampening) of a gradient,
// so dampening equal to momentum gives the exponential average.
//
// `groups`: the first group that matches a parameter applies; a group without parameters is an
// error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"
#include "core/kernels/update.h"

namespace lathe {

/// Returns the allowed values of optim.kind (optim/method.h).
std::vector<std::string> optimizer_names();

/// Returns the kinds of optimizers that read optim.beta1 and optim.beta2.
inline std::vector<std::string> kinds_with_betas() {
  return {"adam", "adamw", "adam8bit", "adamw8bit", "nadam", "lamb", "muon", "lion"};
}

struct OptimConfig {
  LATHE_FIELD(std::string, kind, "adamw", "Optimizer.", one_of(optimizer_names()).fixed())
  LATHE_FIELD(double, lr, 1e-3, "Peak learning rate of the schedule.", at_least(0))
  LATHE_FIELD(double, beta1, 0.9,
              "decay rate of the mean of the gradients; in lion, the weight of this mean in an "
              "update; in muon, for its adamw part.",
              below(0, 1).of(kinds_with_betas()))
  LATHE_FIELD(double, beta2, 0.95,
              "decay rate of the mean of the squared gradients; in lion, of the mean of the "
              "gradients; in muon, for its adamw part.",
              below(0, 1).of(kinds_with_betas()))
  LATHE_FIELD(double, eps, 1e-8, "term added to the denominator.",
              at_least(0).of({"adam", "adamw", "adam8bit", "adamw8bit", "nadam", "lamb", "muon",
                              "rmsprop", "adagrad"}))
  LATHE_FIELD(bool, amsgrad, false,
              "divide by the largest mean of the squared gradients so far (AMSGrad).",
              anything().fixed().of({"adam", "adamw"}))
  LATHE_FIELD(double, momentum, 0.9, "decay rate of the velocity. In rmsprop, 0 means no velocity.",
              below(0, 1).fixed().of({"momentum", "rmsprop"}))
  LATHE_FIELD(double, dampening, 0.0,
              "share of each gradient that is not added to the velocity. A value equal "
              "to optim.momentum gives an exponential moving average.",
              between(0, 1).of({"momentum"}))
  LATHE_FIELD(bool, nesterov, false, "Nesterov momentum. Needs dampening = 0.",
              anything().of({"momentum"}))
  LATHE_FIELD(double, alpha, 0.99, "decay rate of the mean of the squared gradients.",
              below(0, 1).of({"rmsprop"}))
  LATHE_FIELD(bool, centered, false,
              "divide by the standard deviation of the gradients instead of their root "
              "mean square.",
              anything().fixed().of({"rmsprop"}))
  LATHE_FIELD(double, lr_decay, 0.0,
              "the learning rate is divided by 1 + (updates - 1) * lr_decay.",
              at_least(0).of({"adagrad"}))
  LATHE_FIELD(double, initial_accumulator, 0.0, "initial value of the sum of squares.",
              at_least(0).fixed().of({"adagrad"}))
  LATHE_FIELD(double, momentum_decay, 0.004,
              "rate at which the momentum grows from beta1 / 2 to beta1.",
              at_least(0).of({"nadam"}))
  LATHE_FIELD(double, muon_momentum, 0.95, "decay rate of the mean of the gradients.",
              below(0, 1).of({"muon"}))
  LATHE_FIELD(bool, muon_nesterov, true, "Nesterov momentum.", anything().of({"muon"}))
  LATHE_FIELD(int64_t, muon_steps, 5,
              "number of Newton-Schulz iterations that orthogonalize an update.",
              between(1, 100).of({"muon"}))
  LATHE_FIELD(
      std::string, muon_scale, "rms",
      "scale of a matrix's update. rms: 0.2 sqrt(larger side), which makes an update about as "
      "large as adamw's at the same learning rate; spectral: sqrt(rows / columns), but at least 1.",
      one_of({"rms", "spectral"}).of({"muon"}))
  LATHE_FIELD(double, muon_rest_lr, 1.0,
              "learning rate of the parameters that adamw updates (embeddings, head, "
              "vectors), as a multiple of optim.lr.",
              at_least(0).of({"muon"}))
  LATHE_FIELD(double, factor_decay, 0.8,
              "the decay rate of the mean of the squared gradients is 1 - "
              "updates^-factor_decay.",
              inside(0, 1).of({"adafactor"}))
  LATHE_FIELD(double, factor_clip, 1.0,
              "largest root mean square of an update; a larger update is scaled down.",
              above(0, 1000000).of({"adafactor"}))
  LATHE_FIELD(bool, relative_step, false, "limit the learning rate to 1 / sqrt(updates).",
              anything().of({"adafactor"}))
  LATHE_FIELD(bool, scale_parameter, false,
              "multiply the learning rate by the root mean square of the parameter, at "
              "least 0.001.",
              anything().of({"adafactor"}))
  LATHE_FIELD(int64_t, state_block, 256, "number of elements that share one scale.",
              between(16, 65536).fixed().of({"adam8bit", "adamw8bit"}))
  LATHE_FIELD(
      double, weight_decay, 0.1,
      "Weight decay of parameters with two or more dimensions. It is added to the gradient in sgd, "
      "momentum, adagrad, rmsprop, adam, adam8bit and nadam, and decoupled in all other kinds.",
      at_least(0))
  LATHE_FIELD(double, grad_clip, 1.0,
              "Largest allowed gradient, measured as optim.grad_clip_by selects. 0: no clipping.",
              at_least(0))
  LATHE_FIELD(std::string, grad_clip_by, "norm",
              "What optim.grad_clip limits. norm: the norm of all gradients together; parameter: "
              "the norm of each parameter's gradient; value: each element of the gradients.",
              one_of({"norm", "parameter", "value"}))
  LATHE_FIELD(double, ema_decay, 0.0,
              "Decay rate of a moving average of the parameters, which the run keeps beside them "
              "(`lathe eval --weights ema`). 0: no average.",
              below(0, 1).fixed())
  LATHE_FIELD(ConfigTables, groups, ConfigTables(),
              "Parameter groups. Each [[optim.groups]] has match, a pattern of parameter paths in "
              "which * stands for any characters, and lr_scale (a factor on the learning rate), "
              "weight_decay, or both. The first group that matches a parameter applies. A group "
              "with match alone excludes parameters from the groups that follow.",
              anything())
};

/// Settings of a group of parameters: `{.pattern = "head.*", .lr_factor = 0.1}`.
struct GroupOptions {
  std::string pattern{};  ///< pattern of parameter paths; see matches()
  std::function<bool(const NamedParameter& parameter)>
      which{};           ///< predicate that replaces the pattern; if empty, the pattern selects the
                         ///< parameters
  double lr_factor = 1;  ///< factor on the step's learning rate
  std::optional<double> weight_decay{};  ///< nullopt: the same as for other parameters
};

/// Reads optim.groups. Throws Exit::usage if a group lacks the key `match`, or has an unknown key
/// or a bad value.
std::vector<GroupOptions> group_options(const OptimConfig& config);
/// Returns the constants of the update rule; `kind` and `lr` are not set.
UpdateRule rule_of(const OptimConfig& config);

}  // namespace lathe
