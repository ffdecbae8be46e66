// The parameters of sampling a token from logits. Includes no LibTorch header.
#pragma once

#include <cstdint>

namespace lathe {

struct Sampling {
  double temperature = 0.8;  ///< 0: always the likeliest token
  int64_t top_k = 0;         ///< only the k likeliest; 0: all. Fan et al. 2018
  /// Only the likeliest tokens that together reach this probability. Holtzman et al. 2020
  double top_p = 1;
  /// Only tokens with at least this fraction of the likeliest one's probability. Nguyen et al. 2024
  double min_p = 0;
  /// Above 1, tokens that are in the text already become less likely: their logits are divided by
  /// it, or multiplied where they are negative. Keskar et al. 2019
  double repetition_penalty = 1;
  uint64_t seed = 1;
};

}  // namespace lathe
