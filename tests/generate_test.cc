// Picking a token from logits.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>

#include "tests/catch.h"
#include "train/tasks/generate.h"

namespace {

using namespace lathe;

constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("logits that are not finite are refused, however a token is picked", "[generate]") {
  const std::vector<std::vector<double>> bad{{0, nan, 1},  {nan, nan, nan},    {0, inf, 1}, {inf, inf, inf},
                                             {0, -inf, 1}, {-inf, -inf, -inf}, {nan}};
  for (const auto& values : bad) {
    const at::Tensor logits = at::tensor(at::ArrayRef<double>(values));
    for (const double temperature : {0.0, 0.8}) {
      for (const int64_t top_k : {0, 1, 2, 100}) {
        for (const double top_p : {1.0, 0.5, 1e-300, 0.0}) {
          const Sampling s{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          Exit code = Exit::done;
          try {
            pick(logits, s, 0.5);
          } catch (const Error& e) {
            code = e.code();
            CHECK_THAT(e.what(), ContainsSubstring("logits are not finite"));
          }
          CHECK(code == Exit::diverged);
        }
      }
    }
  }
}

TEST_CASE("any sampling of finite logits picks one of the tokens", "[generate]") {
  const std::vector<at::Tensor> all{at::tensor({3.0, 1.0, 2.0}, at::kDouble), at::full({5}, 1e300, at::kDouble),
                                    at::tensor({-1e308, 1e308}, at::kDouble), at::full({1}, 7, at::kFloat)};
  for (const at::Tensor& logits : all) {
    for (const double temperature : {0.0, 1e-320, 0.8, 1e300, inf}) {
      for (const int64_t top_k : {-1, 0, 1, 100}) {
        for (const double top_p : {1.0, 0.5, 1e-300, 0.0, -1.0, nan}) {
          for (const double draw : {0.0, 1e-9, 0.5, 1.0}) {
            const int64_t id = pick(logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p}, draw);
            CHECK((id >= 0 && id < logits.numel()));
          }
        }
      }
    }
  }
}

}  // namespace
