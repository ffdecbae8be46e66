// Lists the headers that are precompiled: those that most files outside core/io and core/kernels
// include. Precompiling only shortens the build, so each file must still include the headers that
// it uses. The CMake option -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON turns precompiling off.
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
