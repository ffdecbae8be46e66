// Finding where a number that is not finite comes from.
#pragma once

#include <functional>
#include <memory>

#include "core/mode.h"

namespace lathe {

/// While alive, every op of this thread, forward and backward, is looked at. The first that makes a
/// NaN or an infinity out of finite values is an Error (Exit::diverged) that names it, the module
/// it ran in (by path, where modules make a ModuleCall), and tells of its inputs: dtypes, shapes,
/// how much is NaN or infinite, least and largest. So is the first op that is given a parameter
/// with such values, or data with NaN. masked_fill may write infinities, and constants may hold
/// them. In backward the op named is the one whose gradient formula made them; what its inputs were
/// in the forward pass is reported too. Costs a few passes over every tensor; where no such guard
/// lives, one test of a pointer an op. torch.autograd.detect_anomaly looks at gradients for NaN
/// alone.
class DetectAnomaly : public ModeGuard {
 public:
  /// What is looked at besides results of the forward pass.
  struct Options {
    bool backward = true;  ///< gradients are looked at too
  };
  DetectAnomaly() : DetectAnomaly(Options{}) {}
  explicit DetectAnomaly(Options options);
  ~DetectAnomaly();

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace lathe
