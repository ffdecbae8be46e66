// What optim/methods.cc has lines for: an optimizer of whole tensors each, by config.
#pragma once

#include <memory>

#include "optim/method.h"

namespace lathe {

std::unique_ptr<Method> make_adafactor(const OptimConfig& config);
std::unique_ptr<Method> make_adam8bit(const OptimConfig& config);
std::unique_ptr<Method> make_lamb(const OptimConfig& config);
std::unique_ptr<Method> make_muon(const OptimConfig& config);

}  // namespace lathe
