// LibTorch's functions, which are the oracles, and Catch2, version 2 or 3. Precompiled, and so the
// first header of every test: LibTorch's logging header defines CHECK as well, and once it was read
// it can't take Catch2's place.
#pragma once

#include <c10/util/Logging.h>
#include <torch/types.h>
#undef CHECK
#undef CHECK_FALSE

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::EventListenerBase;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
using EventListenerBase = Catch::TestEventListenerBase;
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif

#include "core/error.h"

/// The message of the lathe::Error that `action` throws; "" where it throws none.
template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const lathe::Error& e) {
    return e.what();
  }
  return "";
}

/// The largest distance, as a share of the larger of 1 and the largest number.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU, at::kDouble), y = b.to(at::kCPU, at::kDouble);
  return ((x - y).abs().max() / y.abs().max().clamp_min(1)).item<double>();
}
