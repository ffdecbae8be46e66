// Mixed precision: float32 parameters are the masters; ops whose policy is Amp::low read a low-precision working copy,
// written by the optimizer step, and compute in that dtype. Micikevicius et al. 2018.
#pragma once

#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"
#include "core/mode.h"

namespace lathe {

struct AmpConfig {
  LATHE_FIELD(std::string, dtype, "fp32", "dtype of matmuls and attention; parameters and optimizer state stay fp32",
              one_of({"fp32", "bf16"}).fixed())
  LATHE_FIELD(std::string, grad, "auto",
              "dtype of the gradients of matmul weights; auto: low without gradient accumulation, else fp32",
              one_of({"auto", "fp32", "low"}).fixed())
};

/// While alive, ops of this thread whose policy is Amp::low compute in `dtype` (float32: autocast is off).
struct Autocast : ModeGuard {
  explicit Autocast(at::ScalarType dtype) { mode().compute = dtype; }
};

/// Gives matmul weights (and embeddings where `tied`: the head multiplies by the first) a working copy in `dtype`, and
/// their gradients the dtype of `low_grad`. Nothing for float32.
void make_working_copies(const std::vector<NamedParameter>& parameters, at::ScalarType dtype, bool low_grad, bool tied);

/// Rewrites every working copy from its parameter, after parameters were loaded.
void refresh_working_copies(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
