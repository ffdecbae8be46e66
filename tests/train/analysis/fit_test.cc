// Tests which keys `lathe plan --fit` and `lathe find batch` change to make a run fit into memory.
#include "train/analysis/forecast.h"

#include <algorithm>
#include <set>

#include "core/io/json.h"
#include "core/mode.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/process.h"
#include "tests/train/analysis/resident.h"
#include "train/analysis/fit.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("--fit combines the changes that cost the least time", "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  const Overrides given{
      {"data.dir", (f / "data").string()}, {"model.n_layer", "8"},    {"model.n_embd", "64"},
      {"model.block_size", "64"},          {"train.batch_size", "1"}, {"train.grad_accum", "1"},
      {"model.vocab_size", "2000"}};
  const auto needs = [&](const Overrides& more) {
    Overrides all = given;
    all.insert(all.end(), more.begin(), more.end());
    return dry_step(load_config(path, all)).resident();
  };
  const std::pair<std::string, std::string> low{"amp.dtype", "bf16"},
      again{"memory.recompute", "blocks"}, small{"optim.kind", "adamw8bit"};

  // At this limit, recomputation and 8-bit states together are enough, but neither change is enough
  // by itself. Activations that are kept in bfloat16 are enough together with 8-bit states, and
  // take less time than recomputation.
  const int64_t limit = needs({again, small});
  CAPTURE(limit, needs({}), needs({low}), needs({again}), needs({small}));
  REQUIRE(limit < std::min({needs({}), needs({low}), needs({again}), needs({small})}));

  const Forecast now{.dry = dry_step(load_config(path, given))};
  const auto fit = find_fit(path, given, now, limit);
  REQUIRE(fit);
  const Overrides wanted{
      {"memory.saved", "bf16"}, small, {"train.batch_size", "1"}, {"train.grad_accum", "1"}};
  CHECK(*fit == wanted);
  CHECK(!find_fit(path, given, now, limit / 4));
  CHECK(find_fit(path, given, now, now.peak_rss())->empty());
}

TEST_CASE("--fit proposes each of six settings for some limit, and what it proposes fits",
          "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  std::set<std::string> proposed;
  // Parameters take most memory in the first model. Activations take most memory in the second
  // model.
  for (const auto& [embd, length] : {std::pair("128", "16"), {"32", "1024"}}) {
    const Overrides given{
        {"data.dir", (f / "data").string()}, {"model.n_layer", "8"},    {"model.n_embd", embd},
        {"model.block_size", length},        {"train.batch_size", "2"}, {"train.grad_accum", "1"},
        {"model.vocab_size", "500"},         {"optim.grad_clip", "0"}};
    const Forecast now{.dry = dry_step(load_config(path, given))};
    for (const int percent : {95, 60, 50, 40, 35, 30}) {
      const int64_t bytes = now.peak_rss() * percent / 100;
      const auto fit = find_fit(path, given, now, bytes);
      if (!fit) break;
      for (const auto& [key, value] : *fit) proposed.insert(key + "=" + value);
      CHECK(resident_with(path, given, *fit) <= bytes);
    }
  }
  for (const char* setting :
       {"amp.dtype=bf16", "amp.master=false", "memory.recompute=blocks.0-1", "optim.kind=adamw8bit",
        "memory.update_in_backward=true", "train.batch_size=1"}) {
    INFO(setting);
    CHECK(proposed.contains(setting));
  }
}

TEST_CASE("--fit and find batch try only the micro-batches that the config accepts", "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  // fp8 needs a multiple of 16 tokens, so micro-batches here are multiples of 16.
  Overrides given{{"data.dir", (f / "data").string()},
                  {"model.n_layer", "8"},
                  {"model.n_embd", "64"},
                  {"model.n_head", "2"},
                  {"model.vocab_size", "2000"},
                  {"data.window", "5"},
                  {"amp.dtype", "fp8"},
                  {"amp.fp8_edge_blocks", "0"}};

  std::vector<std::string> words{"find",           "batch",      path,
                                 "--memory=300MB", "--rounds=1", "--train.batch_size=16"};
  for (const auto& [key, value] : given) words.push_back("--" + key + "=" + value);
  const Finished found = lathe_in_new_process(f, words);
  INFO(found.out << found.err);
  REQUIRE(found.code == 0);
  const Json json =
      parse_json(found.out.substr(found.out.rfind("\n{") + 1), "find", Exit::internal);
  const auto batch = json["batch_size"].get<int64_t>();
  CHECK(batch >= 16);
  CHECK(batch % 16 == 0);

  const auto needs = [&](int64_t size) {
    Overrides all = given;
    all.emplace_back("train.batch_size", std::to_string(size));
    all.emplace_back("train.grad_accum", std::to_string(144 / size));
    return dry_step(load_config(path, all)).resident();
  };
  CHECK_THROWS_AS(needs(1), Error);
  given.emplace_back("train.batch_size", "144");
  given.emplace_back("train.grad_accum", "1");
  const Forecast now{.dry = dry_step(load_config(path, given))};
  const int64_t small = needs(48), large = needs(144), limit = (small + large) / 2;
  REQUIRE(large > small);
  const auto fit = find_fit(path, given, now, limit);
  REQUIRE(fit);
  CHECK(*fit == Overrides{{"train.batch_size", "48"}, {"train.grad_accum", "3"}});
}

TEST_CASE("--fit changes the precision or the copies of weights if other changes are not enough",
          "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  const Overrides given{
      {"data.dir", (f / "data").string()}, {"model.n_layer", "8"},    {"model.n_embd", "256"},
      {"model.block_size", "8"},           {"train.batch_size", "1"}, {"train.grad_accum", "1"},
      {"model.vocab_size", "4000"},        {"amp.dtype", "bf16"}};
  const auto needs = [&](const Overrides& more) { return resident_with(path, given, more); };
  const std::pair<std::string, std::string> blocks{"memory.recompute", "blocks"},
      root{"memory.recompute", "sqrt"}, small{"optim.kind", "adamw8bit"};

  // Recomputation and 8-bit states together are not enough.
  const int64_t limit = needs({blocks, small}) - 1;
  REQUIRE(limit < needs({root, small}));
  const auto fit = find_fit(path, given, {.dry = dry_step(load_config(path, given))}, limit);
  REQUIRE(fit);
  CHECK(needs(*fit) <= limit);
  CHECK((*fit)[0].first.starts_with("amp."));
}

TEST_CASE("--fit proposes settings that are possible only together", "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  const Overrides given{
      {"data.dir", (f / "data").string()}, {"model.n_layer", "8"},    {"model.n_embd", "128"},
      {"model.block_size", "8"},           {"train.batch_size", "1"}, {"train.grad_accum", "1"},
      {"model.vocab_size", "100"},         {"optim.grad_clip", "0"}};
  const auto needs = [&](const Overrides& more) { return resident_with(path, given, more); };
  const std::pair<std::string, std::string> blocks{"memory.recompute", "blocks"},
      updating{"memory.update_in_backward", "true"};

  // Parameters can be offloaded to disk only if `blocks` and `updating` are both set. At this
  // limit, no other change is enough.
  const int64_t limit = needs({blocks, updating, {"memory.offload", "optimizer+parameters"}});
  REQUIRE(limit < needs({blocks,
                         updating,
                         {"memory.offload", "optimizer"},
                         {"amp.dtype", "bf16"},
                         {"amp.master", "false"}}));
  const auto fit = find_fit(path, given, {.dry = dry_step(load_config(path, given))}, limit);
  REQUIRE(fit);
  CHECK(needs(*fit) <= limit);
  CHECK(std::ranges::find(*fit, std::pair<std::string, std::string>{
                                    "memory.offload", "optimizer+parameters"}) != fit->end());
}

TEST_CASE("--fit finds a smaller micro-batch even if the config does not accept a micro-batch of 1",
          "[fit]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  // fp8 needs a multiple of 16 tokens, so micro-batches here are even.
  const Overrides given{{"data.dir", (f / "data").string()},
                        {"model.n_layer", "2"},
                        {"model.n_embd", "32"},
                        {"model.n_head", "2"},
                        {"model.block_size", "8"},
                        {"model.vocab_size", "100"},
                        {"train.sum_order", "sequence"},
                        {"amp.dtype", "fp8"},
                        {"amp.fp8_edge_blocks", "0"},
                        {"train.batch_size", "128"},
                        {"train.grad_accum", "1"}};
  const Overrides two{{"train.batch_size", "2"}, {"train.grad_accum", "64"}};
  const auto needs = [&](const Overrides& more) { return resident_with(path, given, more); };
  const int64_t limit = needs(two);
  for (const char* policy : {"blocks", "sqrt"}) {
    REQUIRE(limit < needs({{"memory.recompute", policy},
                           {"optim.kind", "adamw8bit"},
                           {"amp.master", "false"},
                           {"memory.offload", "optimizer+activations"}}));
  }
  const auto fit = find_fit(path, given, {.dry = dry_step(load_config(path, given))}, limit);
  REQUIRE(fit);
  CHECK(needs(*fit) <= limit);
}

TEST_CASE("plan --json forecasts what bench step measures, and plan --fit prints keys that fit",
          "[fit][process_memory]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path(), "[log]\nlevel = \"error\"\n");
  const std::vector<std::string> larger{"--model.n_embd=128",      "--model.block_size=32",
                                        "--train.batch_size=64",   "--train.grad_accum=1",
                                        "--model.vocab_size=8000", "--train.device=cpu",
                                        "--train.eval_interval=0"};
  const auto plan = [&](std::vector<std::string> more, const std::vector<std::string>& keys,
                        Exit code = Exit::done) {
    more.insert(more.begin(), {"plan", "tiny.toml"});
    more.insert(more.end(), keys.begin(), keys.end());
    const Finished r = lathe_in(f, more);
    INFO(r.err);
    REQUIRE(r.code == static_cast<int>(code));
    return r.out;
  };
  std::vector<std::string> planned{"plan", "tiny.toml", "--json"};
  planned.insert(planned.end(), larger.begin(), larger.end());
  const Json forecast = parse_json(lathe_in_new_process(f, planned).out, "plan", Exit::internal);
  std::vector<std::string> words{"bench", "step", "tiny.toml", "--train.steps=3"};
  words.insert(words.end(), larger.begin(), larger.end());
  const std::string out = lathe_in_new_process(f, words).out;
  const Json bench = parse_json(out, "bench", Exit::internal);
  CHECK(forecast["peak_rss_mb"].get<double>() ==
        Approx(bench["peak_rss_mb"].get<double>()).epsilon(0.05));
  CHECK(forecast["ms_per_step"].get<double>() > 0);
  CHECK(forecast["memory_mb"]["activations"].get<double>() ==
        Approx(bench["activations_mb"].get<double>()).epsilon(0.02));

  const double needs = forecast["peak_rss_mb"].get<double>();
  const auto limit = static_cast<int64_t>(needs * 0.8);
  const std::string text = plan({"--fit", std::to_string(limit) + "MiB"}, larger);
  INFO(text);
  const size_t at = text.find(" --train.batch_size=");
  REQUIRE(at != std::string::npos);
  int batch = 0, accumulation = 0;
  REQUIRE(std::sscanf(text.c_str() + at, " --train.batch_size=%d --train.grad_accum=%d", &batch,
                      &accumulation) == 2);
  CHECK(batch * accumulation == 64);
  CHECK(batch < 64);
  std::vector<std::string> fitted = larger;
  fitted[2] = "--train.batch_size=" + std::to_string(batch);
  fitted[3] = "--train.grad_accum=" + std::to_string(accumulation);
  CHECK(parse_json(plan({"--json"}, fitted), "plan", Exit::internal)["peak_rss_mb"].get<double>() <
        1.02 * static_cast<double>(limit));

  CHECK_THAT(plan({"--fit", "100GB"}, {}), ContainsSubstring("100.0 GB"));
  CHECK_THAT(plan({"--fit=50MB"}, {}, Exit::no_fit), ContainsSubstring("50.0 MB"));
  CHECK(parse_gpus("A100-40GB").first.memory_bytes < parse_gpus("2xa100").first.memory_bytes);
  CHECK_THAT(plan({"--for", "8xH100"}, {}), ContainsSubstring("8 x H100"));
  CHECK_THAT(plan({"--fit"}, {}), ContainsSubstring("(free"));

  const Finished no_gpu = lathe_in(f, {"plan", "tiny.toml", "--for", "8xH1000"});
  CHECK(no_gpu.code == static_cast<int>(Exit::usage));
  CHECK_THAT(no_gpu.err, ContainsSubstring("--for 8xH1000") && ContainsSubstring("A100-40"));
  const Finished no_amount = lathe_in(f, {"plan", "tiny.toml", "--fit", "8 apples"});
  CHECK(no_amount.code == static_cast<int>(Exit::usage));
  CHECK_THAT(no_amount.err, ContainsSubstring("--fit: 8 apples") && ContainsSubstring("16GiB"));
}

}  // namespace
