// Declares the optimizers that update whole tensors, which optim/methods.cc lists.
#pragma once

#include <memory>

#include "optim/method.h"

namespace lathe {

/// Returns Adafactor; see core/kernels/adafactor.h.
std::unique_ptr<Method> make_adafactor(const OptimConfig& config);
/// Returns 8-bit Adam, or 8-bit AdamW if the config's kind is adamw8bit; see
/// core/kernels/adam8bit.h.
std::unique_ptr<Method> make_adam8bit(const OptimConfig& config);
/// Returns LAMB; see core/kernels/lamb.h.
std::unique_ptr<Method> make_lamb(const OptimConfig& config);
/// Returns Muon; see core/kernels/muon.h.
std::unique_ptr<Method> make_muon(const OptimConfig& config);

}  // namespace lathe
