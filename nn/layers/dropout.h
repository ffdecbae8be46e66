// Dropout.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "core/mode.h"
#include "nn/module.h"

namespace lathe {

/// Applies dropout() with a stream of random numbers, which assign_random_streams() derives from
/// the path of this module.
struct Dropout {
  double p = 0;
  uint64_t stream = 0;

  Dropout() = default;
  explicit Dropout(double p_) : p(p_) {}
  Variable operator()(const Variable& x) const { return dropout(x, p, stream); }
  bool active() const { return p > 0 && is_training(); }
  void visit(Visit& v) { v.stream(stream); }
};

}  // namespace lathe
