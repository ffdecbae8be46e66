// Headers that most files outside core/io and core/kernels include. They are precompiled only to
// shorten the build, so a file must still include what it uses.
// -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON turns this off.
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
