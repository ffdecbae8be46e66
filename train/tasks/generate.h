// Sampling text from a model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "amp/amp.h"
#include "nn/models/model.h"

namespace lathe {

struct Sampling {
  double temperature = 0.8;  ///< 0: always the likeliest token
  int64_t top_k = 0;         ///< only the k likeliest; 0: all. Fan et al. 2018
  double top_p = 1;          ///< only the likeliest that reach this probability together. Holtzman et al. 2020
  uint64_t seed = 1;
};

/// Continues `ids` (not empty) by n tokens; on_token, where given, sees each as it comes, and ends the text by
/// returning false. The last `context` tokens are what the model sees. Token i depends on the seed and what is before
/// it alone.
std::vector<int64_t> generate(const Model& model, int64_t context, std::vector<int64_t> ids, int64_t n,
                              const Sampling& sampling, Compute compute, at::Device device,
                              const std::function<bool(int64_t)>& on_token = nullptr);

/// Picks from logits [V], V > 0; `draw` is uniform in (0, 1). At least the likeliest token is kept, whatever top_k and
/// top_p say. Exit::diverged where a logit is not finite.
int64_t pick(const at::Tensor& logits_V, const Sampling& sampling, double draw);

}  // namespace lathe
