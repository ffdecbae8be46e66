// Includes LibTorch's functions, with which tests compare results, and Catch2, version 2 or 3. This
// header is precompiled, so the compiler reads it before all others. LibTorch's logging header also
// defines CHECK. It is included here and its CHECK is removed, so that a later #include can't
// replace Catch2's CHECK.
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

/// Returns the message of the lathe::Error that `action` throws, or "" if it throws nothing.
template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const lathe::Error& e) {
    return e.what();
  }
  return "";
}

/// Returns max|a - b| / max(1, max|b|), computed in float64.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kCPU, at::kDouble), y = b.to(at::kCPU, at::kDouble);
  return ((x - y).abs().max() / y.abs().max().clamp_min(1)).item<double>();
}
