// Headers that most files outside core/ read. A file still includes what it uses, because these are
// precompiled only to shorten the build (-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON turns it off).
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
