#include "nn/layers/sequential.h"

#include "nn/layers/linear.h"

namespace lathe {

Sequential mlp(const std::vector<int64_t>& sizes) {
  Sequential model;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) model.add([](const Variable& x) { return relu(x); });
    model.add(Linear(sizes[i], sizes[i + 1], /*with_bias=*/true));
  }
  return model;
}

}  // namespace lathe
