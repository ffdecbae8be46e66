// Mixed precision: float32 parameters are the masters; ops whose policy is Amp::low read a
// low-precision working copy, written by the optimizer step, and compute in that dtype.
// Micikevicius et al. 2018.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"
#include "core/mode.h"

namespace lathe {

struct AmpConfig {
  LATHE_FIELD(std::string, dtype, "fp32",
              "dtype of matmuls and attention; norms, softmax, losses and sums over many terms "
              "stay fp32. fp8: linear "
              "layers of the blocks in e4m3 forward and e5m2 backward, the rest in bf16",
              one_of({"fp32", "bf16", "fp16", "fp8"}).fixed())
  LATHE_FIELD(bool, tf32, false,
              "float32 matmuls on a GPU may round their inputs to TF32 (10 mantissa bits)",
              anything().fixed())
  LATHE_FIELD(std::string, grad, "auto",
              "dtype of the gradients of matmul weights; auto: low without gradient accumulation, "
              "else fp32",
              one_of({"auto", "fp32", "low"}).fixed())
  LATHE_FIELD(bool, working_copies, true,
              "keep a low-precision copy of each matmul weight, written by the optimizer step; "
              "false: cast at use",
              anything().fixed())
  LATHE_FIELD(bool, cache, true,
              "weights without a working copy: keep a cast until the outermost autocast ends; "
              "false: cast at each use",
              anything().fixed())
  LATHE_FIELD(bool, master, true,
              "keep fp32 parameters; false: parameters of 2 and more dimensions are low-precision "
              "themselves, which "
              "saves memory",
              anything().fixed())
  LATHE_FIELD(std::string, rounding, "auto",
              "how an update is rounded to low-precision parameters (amp.master = false); auto: "
              "stochastic in bf16, "
              "nearest in fp16",
              one_of({"auto", "nearest", "stochastic"}).fixed())
  LATHE_FIELD(std::string, scaler, "auto",
              "loss scaling, for fp16; auto: dynamic in fp16, else none",
              one_of({"auto", "none", "dynamic", "fixed"}).fixed())
  LATHE_FIELD(double, loss_scale, 65536.0,
              "dynamic: where the loss scale starts; fixed: the loss scale",
              between(1e-6, 16777216).fixed())
  LATHE_FIELD(double, growth_factor, 2.0,
              "dynamic: the scale is multiplied by it after growth_interval clean steps",
              between(1, 1000).fixed())
  LATHE_FIELD(double, backoff_factor, 0.5,
              "dynamic: the scale is multiplied by it after a non-finite gradient",
              inside(0, 1).fixed())
  LATHE_FIELD(int64_t, growth_interval, 2000, "dynamic: clean steps before the scale grows",
              between(1, 100000000).fixed())
  LATHE_FIELD(double, min_loss_scale, 1.0,
              "dynamic: a step that would take the scale below it ends the run (exit 5)",
              between(1e-6, 16777216).fixed())
  LATHE_FIELD(int64_t, max_skips, 50, "so many skipped steps in a row end the run (exit 5)",
              between(1, 100000000).fixed())
  LATHE_FIELD(std::string, fp8_scaling, "current",
              "where a tensor's fp8 scale comes from: its own largest value, or (delayed) that of "
              "earlier steps",
              one_of({"current", "delayed"}).fixed())
  LATHE_FIELD(int64_t, fp8_history, 16, "delayed: steps whose largest values are remembered",
              between(1, 10000).fixed())
  LATHE_FIELD(int64_t, fp8_edge_blocks, 1,
              "first and last blocks that stay in bf16, as embeddings and the head always do",
              between(0, 1000).fixed())
};

/// Returns the dtype for Autocast: float32, bfloat16, float16, or float8_e4m3fn for the fp8 recipe.
at::ScalarType compute_dtype(const AmpConfig& config);
/// Returns the dtype of matmuls outside fp8 layers: bfloat16 under fp8.
at::ScalarType matmul_dtype(at::ScalarType compute);

/// An argument of Autocast: a dtype, and whether casts of weights are kept.
struct Compute {
  at::ScalarType dtype = at::kFloat;
  bool cache = true;

  Compute() = default;
  Compute(at::ScalarType dtype_, bool cache_ = true) : dtype(dtype_), cache(cache_) {}
};

/// While alive, ops of this thread whose policy is Amp::low compute in the given dtype. float32
/// turns autocast off, also inside another Autocast. float8_e4m3fn: linear layers that have an
/// Fp8Scaling compute in fp8, others in bfloat16. Other threads are not affected. With `cache`, the
/// cast of a weight without a working copy is kept until the outermost Autocast ends.
class Autocast : public ModeGuard {
 public:
  explicit Autocast(Compute compute);
  ~Autocast();
};

/// Gives matmul weights (is_multiplied) a working copy in the matmul dtype, unless they belong to
/// fp8 layers or `copies` is false. With `low_grad` their gradients have that dtype too. Does
/// nothing for float32.
void make_working_copies(const std::vector<NamedParameter>& parameters, at::ScalarType compute,
                         bool copies, bool low_grad);
/// Rewrites every working copy from its parameter. Call it after parameters were loaded.
void refresh_working_copies(const std::vector<NamedParameter>& parameters);
/// Turns the linear layers of a model's repeated blocks into fp8 layers, except those of the first
/// and last blocks that the config excludes. Does nothing unless the config's dtype is fp8.
void make_fp8_layers(const std::vector<NamedParameter>& parameters, const AmpConfig& config);
/// Ends a step of delayed scaling: the step's largest values become history.
void advance_fp8(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
