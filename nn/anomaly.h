// Finds the op that produced the first number that is not finite.
#pragma once

#include <functional>
#include <memory>

#include "core/mode.h"

namespace lathe {

/// Until destroyed, checks the results of the ops of this thread, forward and backward. The first
/// op that computes a NaN or an infinity from finite values throws an Error (Exit::diverged). The
/// message names the op and the module of the innermost ModuleCall, if there is one. It also
/// describes the op's inputs: dtypes, shapes, numbers of NaN and infinities, minimum and maximum.
/// The first op that receives a parameter with NaN or infinities, or data with NaN, also throws.
/// Constants may contain infinities. The forward results of masked_fill, pad and fused() are not
/// checked, since these ops may write infinities. In the backward pass, the message names the op
/// whose gradient formula computed the value, and describes the op's inputs in the forward pass.
/// The guard costs a few passes over every tensor; without a guard the cost is one pointer test per
/// op. In contrast, torch.autograd.detect_anomaly checks only gradients, and only for NaN.
class DetectAnomaly : public ModeGuard {
 public:
  /// Selects checks in addition to the checks of forward results.
  struct Options {
    bool backward = true;  ///< also check gradients
  };
  DetectAnomaly() : DetectAnomaly(Options{}) {}
  explicit DetectAnomaly(Options options);
  ~DetectAnomaly();

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace lathe
