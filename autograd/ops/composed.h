// Registers functions that are composed of ops.
#pragma once

#include <initializer_list>

#include "autograd/op.h"

namespace lathe {

/// Adds the names to op_registry(). The test of the op table then fails unless the table has a row
/// for each of these functions. Returns true, so that the call can initialize a static variable.
inline bool register_composed(std::initializer_list<const char*> names) {
  op_registry().insert(names.begin(), names.end());
  return true;
}

}  // namespace lathe
