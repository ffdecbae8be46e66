// Implements mixed precision. Parameters are float32 master weights. Ops whose policy is Amp::low,
// such as matmuls, compute in a low-precision dtype and read working copies of the parameters in
// that dtype. The optimizer step updates the working copies. See Micikevicius et al. 2018, "Mixed
// precision training".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"
#include "core/mode.h"

namespace lathe {

struct AmpConfig {
  LATHE_FIELD(std::string, dtype, "fp32",
              "Dtype of matrix products and attention. Norms, softmax, losses and long sums stay "
              "in fp32. fp8: the linear layers of the blocks compute in e4m3 (forward) and e5m2 "
              "(backward), and other matrix products compute in bf16.",
              one_of({"fp32", "bf16", "fp16", "fp8"}).fixed())
  LATHE_FIELD(
      bool, tf32, false,
      "Whether fp32 matrix products on a GPU may round their inputs to TF32 (10 mantissa bits).",
      anything().fixed())
  LATHE_FIELD(std::string, grad, "auto",
              "Dtype of the gradients of matmul weights. low: the dtype of matmuls; auto: fp32 "
              "with gradient accumulation, context parallelism or sequence parallelism, else low.",
              one_of({"auto", "fp32", "low"}).fixed())
  LATHE_FIELD(bool, working_copies, true,
              "Whether each matmul weight has a low-precision copy, which the optimizer step "
              "updates. false: weights are cast when they are used.",
              anything().fixed())
  LATHE_FIELD(bool, cache, true,
              "For weights without a working copy: whether a cast is kept until the outermost "
              "autocast ends. false: weights are cast at each use.",
              anything().fixed())
  LATHE_FIELD(bool, master, true,
              "Whether parameters are kept in fp32 (master weights). false: parameters with two or "
              "more dimensions are kept in the low precision only, which saves memory.",
              anything().fixed())
  LATHE_FIELD(std::string, rounding, "auto",
              "Rounding of updates to low-precision parameters (amp.master = false). auto: "
              "stochastic in bf16, nearest in fp16.",
              one_of({"auto", "nearest", "stochastic"}).fixed())
  LATHE_FIELD(std::string, scaler, "auto", "Loss scaling. auto: dynamic in fp16, else none.",
              one_of({"auto", "none", "dynamic", "fixed"}).fixed())
  LATHE_FIELD(double, loss_scale, 65536.0, "dynamic: initial loss scale. fixed: the loss scale.",
              between(1e-6, 16777216).fixed())
  LATHE_FIELD(
      double, growth_factor, 2.0,
      "dynamic: factor on the loss scale after growth_interval steps with finite gradients.",
      between(1, 1000).fixed())
  LATHE_FIELD(double, backoff_factor, 0.5,
              "dynamic: factor on the loss scale after a gradient that is not finite.",
              inside(0, 1).fixed())
  LATHE_FIELD(
      int64_t, growth_interval, 2000,
      "dynamic: number of steps in a row with finite gradients after which the loss scale grows.",
      between(1, 100000000).fixed())
  LATHE_FIELD(double, min_loss_scale, 1.0,
              "dynamic: smallest loss scale. A skipped step that would lower the loss scale below "
              "this value ends the run with exit code 5.",
              between(1e-6, 16777216).fixed())
  LATHE_FIELD(int64_t, max_skips, 50,
              "dynamic, fixed: number of consecutive skipped steps after which the run ends with "
              "exit code 5.",
              between(1, 100000000).fixed())
  LATHE_FIELD(std::string, fp8_scaling, "current",
              "Source of a tensor's fp8 scale. current: the largest absolute value of the tensor; "
              "delayed: the largest absolute value in earlier steps.",
              one_of({"current", "delayed"}).fixed())
  LATHE_FIELD(int64_t, fp8_history, 16,
              "delayed: number of earlier steps whose largest absolute values are used.",
              between(1, 10000).fixed())
  LATHE_FIELD(int64_t, fp8_edge_blocks, 1,
              "Number of blocks at each end of the model that stay in bf16, as the embeddings and "
              "the head always do.",
              between(0, 1000).fixed())
};

/// Returns the dtype for Autocast: float32, bfloat16, float16, or float8_e4m3fn for the fp8 recipe.
at::ScalarType compute_dtype(const AmpConfig& config);
/// Returns the dtype of matmuls outside fp8 layers: bfloat16 if `compute` is float8_e4m3fn, else
/// `compute`.
at::ScalarType matmul_dtype(at::ScalarType compute);

/// The argument of Autocast: a dtype, and whether casts of weights are cached.
struct Compute {
  at::ScalarType dtype = at::kFloat;
  bool cache = true;

  Compute() = default;
  Compute(at::ScalarType dtype_, bool cache_ = true) : dtype(dtype_), cache(cache_) {}
};

/// While this object exists, ops of this thread whose policy is Amp::low compute in the given
/// dtype. float32 turns autocast off, even inside another Autocast. With float8_e4m3fn, linear
/// layers whose weight has an Fp8Scaling compute in fp8, and all other ops whose policy is Amp::low
/// compute in bfloat16. Other threads are not affected. If `cache` is set, the cast of a weight
/// without a working copy is kept until the outermost Autocast ends.
class Autocast : public ModeGuard {
 public:
  explicit Autocast(Compute compute);
  ~Autocast();
};

/// Gives float32 matmul weights (is_multiplied) a working copy in the matmul dtype, unless they
/// belong to fp8 layers or `copies` is false. Also sets the gradient dtype of matmul weights and of
/// parameters that are not float32: the matmul dtype if `low_grad`, otherwise float32. If a
/// parameter's memory was freed (see has_memory()), its copy has a shape but no memory. Does
/// nothing if `compute` is float32. Call it after make_fp8_layers().
void make_working_copies(const std::vector<NamedParameter>& parameters, at::ScalarType compute,
                         bool copies, bool low_grad);
/// Updates the working copy of each parameter that has changed since the copy was written. Call it
/// after anything but the optimizer step has changed parameters, for example after they were
/// loaded.
void refresh_working_copies(std::span<const NamedParameter> parameters);
/// Makes the linear layers of a model's repeated blocks compute in fp8 under an fp8 Autocast,
/// except in the first and the last `fp8_edge_blocks` blocks. Does nothing unless the config's
/// dtype is fp8.
void make_fp8_layers(const std::vector<NamedParameter>& parameters, const AmpConfig& config);
/// Ends a training step for delayed fp8 scaling: moves the step's largest absolute values into the
/// history of each layer. Does nothing with current scaling.
void advance_fp8(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
