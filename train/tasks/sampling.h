// Declares the parameters of sampling a token from logits. Includes no LibTorch header.
#pragma once

#include <cstdint>

namespace lathe {

/// Holds the parameters of sampling. Filters are applied in the order top_k, top_p, min_p.
struct Sampling {
  double temperature = 0.8;  ///< 0: always take the likeliest token
  int64_t top_k = 0;  ///< keep only the k likeliest tokens; 0: keep all tokens (Fan et al. 2018)
  /// Keep only the likeliest tokens whose total probability reaches this value (Holtzman et al.
  /// 2020).
  double top_p = 1;
  /// Keep only tokens whose probability is at least this fraction of the likeliest token's
  /// probability (Nguyen et al. 2024).
  double min_p = 0;
  /// If above 1, tokens that are already in the text become less likely: their logits are divided
  /// by this number or, if they are negative, multiplied by it (Keskar et al. 2019).
  double repetition_penalty = 1;
  uint64_t seed = 1;
};

}  // namespace lathe
