// Functions that are composed of ops.
#pragma once

#include <initializer_list>

#include "autograd/op.h"

namespace lathe {

/// Puts their names into op_registry(), so that each needs its rows in the op table as an op does.
inline bool composed(std::initializer_list<const char*> names) {
  op_registry().insert(names.begin(), names.end());
  return true;
}

}  // namespace lathe
