// The optimizers of whole tensors that optim/methods.cc lists.
#pragma once

#include <memory>

#include "optim/method.h"

namespace lathe {

/// core/kernels/adafactor.h
std::unique_ptr<Method> make_adafactor(const OptimConfig& config);
/// core/kernels/adam8bit.h; adamw8bit if that is the config's kind
std::unique_ptr<Method> make_adam8bit(const OptimConfig& config);
/// core/kernels/lamb.h
std::unique_ptr<Method> make_lamb(const OptimConfig& config);
/// core/kernels/muon.h
std::unique_ptr<Method> make_muon(const OptimConfig& config);

}  // namespace lathe
