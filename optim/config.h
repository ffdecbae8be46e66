// The keys of [optim], and settings for some of the parameters.
//
// `dampening` is torch's: the velocity takes (1 - dampening) of a gradient, so dampening equal to
// momentum gives the exponential average.
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

struct OptimConfig {
  LATHE_FIELD(std::string, kind, "adamw", "which optimizer", one_of(optimizer_names()).fixed())
  LATHE_FIELD(double, lr, 1e-3, "learning rate at the schedule's height", at_least(0))
  LATHE_FIELD(double, beta1, 0.9,
              "the adams, nadam, lamb, muon's adamw: decay of the mean of gradients; lion: share "
              "of it in an update",
              below(0, 1))
  LATHE_FIELD(
      double, beta2, 0.95,
      "the adams, nadam, lamb, muon's adamw: decay of the mean of squares; lion: decay of the mean",
      below(0, 1))
  LATHE_FIELD(double, eps, 1e-8,
              "the adams, nadam, lamb, muon's adamw, rmsprop, adagrad: added to the denominator",
              at_least(0))
  LATHE_FIELD(bool, amsgrad, false, "adam, adamw: divide by the largest mean of squares so far",
              anything().fixed())
  LATHE_FIELD(double, momentum, 0.9,
              "momentum, rmsprop: decay of the velocity (rmsprop: 0 is plain)", below(0, 1).fixed())
  LATHE_FIELD(double, dampening, 0.0,
              "momentum: share of a gradient kept out of the velocity; as large as momentum: the "
              "exponential average",
              between(0, 1))
  LATHE_FIELD(bool, nesterov, false, "momentum: look ahead along the velocity (needs dampening 0)",
              anything())
  LATHE_FIELD(double, alpha, 0.99, "rmsprop: decay of the mean of squares", below(0, 1))
  LATHE_FIELD(bool, centered, false,
              "rmsprop: divide by the deviation instead of the root mean square",
              anything().fixed())
  LATHE_FIELD(double, lr_decay, 0.0, "adagrad: lr is divided by 1 + updates * lr_decay",
              at_least(0))
  LATHE_FIELD(double, initial_accumulator, 0.0, "adagrad: where the sum of squares starts",
              at_least(0).fixed())
  LATHE_FIELD(double, momentum_decay, 0.004,
              "nadam: how fast the momentum grows from beta1 / 2 to beta1", at_least(0))
  LATHE_FIELD(double, muon_momentum, 0.95, "muon: decay of the mean of gradients", below(0, 1))
  LATHE_FIELD(bool, muon_nesterov, true, "muon: look ahead along that mean", anything())
  LATHE_FIELD(int64_t, muon_steps, 5, "muon: Newton-Schulz steps that orthogonalise an update",
              between(1, 100))
  LATHE_FIELD(std::string, muon_scale, "rms",
              "muon: length of a matrix's update; rms: about that of adamw's at the same lr, 0.2 "
              "sqrt(larger side); "
              "spectral: sqrt(rows / columns), at least 1",
              one_of({"rms", "spectral"}))
  LATHE_FIELD(
      double, muon_rest_lr, 1.0,
      "muon: learning rate of what adamw takes (embeddings, head, vectors), as a share of lr",
      at_least(0))
  LATHE_FIELD(double, factor_decay, 0.8,
              "adafactor: the mean of squares decays by 1 - updates^-factor_decay", inside(0, 1))
  LATHE_FIELD(double, factor_clip, 1.0, "adafactor: largest root mean square of an update",
              above(0, 1000000))
  LATHE_FIELD(bool, relative_step, false,
              "adafactor: a learning rate of at most 1 / sqrt(updates), whatever the schedule says",
              anything())
  LATHE_FIELD(bool, scale_parameter, false,
              "adafactor: learning rate times the parameter's root mean square, which counts as "
              "0.001 at least",
              anything())
  LATHE_FIELD(int64_t, state_block, 256, "adam8bit, adamw8bit: elements that share a scale",
              between(16, 65536).fixed())
  LATHE_FIELD(double, weight_decay, 0.1,
              "on parameters of 2 and more dimensions; added to the gradient in sgd, momentum, "
              "adagrad, rmsprop, adam, "
              "adam8bit and nadam, decoupled elsewhere",
              at_least(0))
  LATHE_FIELD(double, grad_clip, 1.0,
              "what grad_clip_by says may be no larger than this; 0: no clipping", at_least(0))
  LATHE_FIELD(std::string, grad_clip_by, "norm",
              "norm: that of all gradients together; parameter: the norm of each parameter's "
              "gradient; value: each "
              "element of a gradient",
              one_of({"norm", "parameter", "value"}))
  LATHE_FIELD(double, ema_decay, 0.0,
              "keep a moving average of the trained parameters too, with this decay (`lathe eval "
              "--weights ema`); 0: "
              "none",
              below(0, 1).fixed())
  LATHE_FIELD(ConfigTables, groups, ConfigTables(),
              "settings of some parameters: each [[optim.groups]] has match, a pattern of paths in "
              "which * stands for "
              "any characters, and lr_scale (times the learning rate), weight_decay (of all it "
              "takes) or both; the "
              "first that matches counts",
              anything())
};

/// Settings for some of the parameters: `{.pattern = "head.*", .lr_factor = 0.1}`.
struct GroupOptions {
  std::string pattern{};  ///< of paths; see matches()
  std::function<bool(const NamedParameter& parameter)>
      which{};                           ///< if set, chooses instead of the pattern
  double lr_factor = 1;                  ///< times the step's learning rate
  std::optional<double> weight_decay{};  ///< nullopt: the same as for other parameters
};

/// Reads optim.groups. Throws Exit::usage if a group lacks match or has an unknown key or a bad
/// value.
std::vector<GroupOptions> group_options(const OptimConfig& config);
/// Returns the constants of a step, except kind and lr.
UpdateRule rule_of(const OptimConfig& config);

}  // namespace lathe
