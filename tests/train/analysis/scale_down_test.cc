// Tests of the smaller versions of a model from which `lathe plan` extrapolates.

#include <optional>

#include "core/mode.h"
#include "nn/layers.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/process.h"
#include "tests/train/analysis/sized_config.h"

namespace {

using namespace lathe;
using namespace lathe::test;

double sum_of_sizes(const AnyConfig& config) {
  double sum = 0;
  for (const Field& field : config.schema().fields()) {
    if (const int64_t* const size = config.find<int64_t>(field.key))
      sum += static_cast<double>(*size);
  }
  return sum;
}

/// Returns the number of parameters of a model with the given config for small images.
int64_t parameters_of(const ModelKind& kind, const AnyConfig& config) {
  const MetaInit guard;
  const auto model = kind.make(config, {.input = {3, 8, 8}, .outputs = 10});
  return count(parameters(*model));
}

TEST_CASE("every kind of model can be scaled down from any sizes, and accepts each smaller version",
          "[scale_down]") {
  const std::vector<std::pair<std::string, Sizes>> cases{
      {"n_embd", {{"n_layer", 48}, {"n_embd", 1600}, {"n_head", 25}, {"block_size", 1024}}},
      {"n_embd",
       {{"n_layer", 97},
        {"n_embd", 10007},
        {"n_head", 1},
        {"n_hidden", 10007},
        {"block_size", 9973}}},
      {"n_embd", {{"n_layer", 3}, {"n_embd", 101 * 26}, {"n_head", 101}, {"n_hidden", 99991}}},
      {"n_embd", {{"n_embd", 100000}, {"n_head", 2}, {"n_hidden", 100000}}},
      {"n_embd", {{"n_embd", 12 * 130}, {"n_head", 12}, {"n_hidden", 3}}},
      {"n_kv_head", {{"n_embd", 12 * 130}, {"n_head", 12}, {"n_kv_head", 4}}},
      {"n_kv_head", {{"n_embd", 14 * 66}, {"n_head", 14}, {"n_kv_head", 7}, {"n_inner", 99991}}},
      {"n_kv_head",
       {{"n_embd", 9999}, {"n_head", 45}, {"n_kv_head", 9}, {"head_dim", 34}, {"n_inner", 1}}},
      {"n_kv_head",
       {{"n_embd", 64},
        {"n_head", 10},
        {"n_kv_head", 1},
        {"head_dim", 50002},
        {"n_inner", 999983}}},
      {"n_hidden", {{"n_layer", 999}, {"n_hidden", 99991}}},
      {"n_channel", {{"n_stage", 12}, {"n_channel", 101}, {"n_block", 7}}},
      {"n_channel", {{"n_stage", 5}, {"n_channel", 99991}, {"n_block", 1}}},
  };

  for (const ModelKind& kind : model_kinds()) {
    int walks = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      auto config = sized_config(kind, cases[i].first, cases[i].second);
      if (!config) continue;
      INFO(kind.name << ", case " << i);
      ++walks;

      for (int versions = 0;; ++versions) {
        REQUIRE(versions < 100);
        const auto ways = scaled_versions(kind, *config);
        if (ways.empty()) break;

        const AnyConfig next = ways.at(0).at(0);
        const auto fault = kind.check(next);
        std::string sizes;
        for (const Field& field : next.schema().fields()) {
          if (const int64_t* const size = next.find<int64_t>(field.key))
            sizes += str(field.key, " ", *size, "  ");
        }

        INFO(sizes);
        CHECK_FALSE(fault.has_value());
        CHECK(sum_of_sizes(next) < sum_of_sizes(*config));
        CHECK(parameters_of(kind, next) < parameters_of(kind, *config) + 1);
        config = next;
      }
      CHECK(parameters_of(kind, *config) < 30'000'000);
    }

    // Each kind must accept at least one of the cases.
    INFO(kind.name);
    CHECK(walks >= 1);
  }
}

struct OddConfig {
  LATHE_FIELD(int64_t, n_part, 25, "parts of the width, all alike", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, width, 1600, "numbers of a row", between(20, 100000).fixed())
  LATHE_FIELD(int64_t, seed, 0, "no size", between(-5, 100000).fixed())
};
/// A model kind that does not define scale_down.
struct Odd {
  Linear layer;
  Odd(const OddConfig& c, const ModelSizes& sizes) : layer(c.width, sizes.outputs, true) {}
  Variable operator()(const Variable& x) const { return layer(x); }
  static std::optional<ConfigFault> check(const OddConfig& c) {
    if (c.width % c.n_part == 0) return std::nullopt;
    return ConfigFault{{"width"}, "parts differ"};
  }
  void visit(Visit& v) { v("layer", layer); }
};

TEST_CASE("a kind without scale_down is tried at halves and divisors of its sizes",
          "[scale_down]") {
  const ModelKind kind = model_kind<Odd, OddConfig>("odd", "");
  REQUIRE_FALSE(kind.scale_down);
  const auto ways = scaled_versions(kind, kind.config);
  REQUIRE(ways.size() == 3);
  std::vector<int64_t> widths, parts;
  for (const AnyConfig& config : ways[0]) widths.push_back(config.as<OddConfig>().width);
  for (const AnyConfig& config : ways[1]) parts.push_back(config.as<OddConfig>().n_part);
  CHECK(widths == std::vector<int64_t>{800, 400, 200, 100, 50, 25});
  CHECK(parts == std::vector<int64_t>{5, 1});
  CHECK(ways[2].empty());
}

}  // namespace
