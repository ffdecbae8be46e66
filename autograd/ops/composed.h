// Registration of functions that are composed of ops.
#pragma once

#include <initializer_list>

#include "autograd/op.h"

namespace lathe {

/// Adds the names to op_registry(), so that each function needs rows in the op table, as an op
/// does. Returns true, so that it can initialize a static variable.
inline bool register_composed(std::initializer_list<const char*> names) {
  op_registry().insert(names.begin(), names.end());
  return true;
}

}  // namespace lathe
