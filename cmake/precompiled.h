// Headers that most files outside core/ read. Files still include what they use; this one changes
// nothing but the time of a build (-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON does without).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/json.h"
