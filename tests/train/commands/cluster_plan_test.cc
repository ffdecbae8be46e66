// Tests `lathe plan` for a cluster of GPUs: its output, what it reads from the config, its table of
// GPUs, and its errors.
#include <cstdio>

#include "core/io/json.h"
#include "core/io/text.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/analysis/forecast.h"
#include "train/simulate/search.h"

namespace {

using namespace lathe;
using namespace lathe::test;

constexpr const char* gpt_config =
    "[model]\nn_layer = 8\nn_head = 16\nn_embd = 1024\nblock_size = 512\nvocab_size = 5000\n"
    "[train]\nbatch_size = 4\ngrad_accum = 64\nsteps = 100\n[amp]\ndtype = \"bf16\"\n"
    "[data]\ndir = \"none\"\n";
constexpr const char* llama_config =
    "[model]\nkind = \"llama\"\nn_layer = 8\nn_head = 16\nn_kv_head = 4\nn_embd = 1024\n"
    "block_size = 512\nvocab_size = 5000\ntie_weights = false\nqkv_bias = false\n"
    "[train]\nbatch_size = 4\ngrad_accum = 64\nsteps = 100\n[amp]\ndtype = \"bf16\"\n"
    "[data]\ndir = \"none\"\n";

/// A folder with two configs: a GPT and a Llama.
struct ConfigFolder {
  TempFolder folder{fast_folder()};
  ConfigFolder() {
    write_file(folder / "gpt.toml", gpt_config);
    write_file(folder / "llama.toml", llama_config);
  }
  Finished plan(std::vector<std::string> words, const std::string& config = "gpt.toml") const {
    words.insert(words.begin(), {"plan", config});
    return lathe_in(folder, words);
  }
  Json json(std::vector<std::string> words, const std::string& config = "gpt.toml") const {
    words.push_back("--json");
    const Finished r = plan(words, config);
    INFO(r.err);
    REQUIRE((r.code == 0 || r.code == 10));
    return parse_json(r.out, "plan", Exit::internal);
  }
};

TEST_CASE("a cluster plan uses the model, batch and optimizer of the config", "[cluster_plan]") {
  const ConfigFolder f;
  for (const char* config : {"gpt.toml", "llama.toml"}) {
    INFO(config);
    const LoadedConfig loaded = load_config((f.folder / config).string(), {});
    const DryStep dry = dry_step(loaded);
    const Json json = f.json({"--card", "h100", "--layout", "data=8,micro=4"}, config);
    CHECK(json["params"].get<double>() == Approx(dry.parameters));
    CHECK(f.json({"--card", "h100", "--layout", "data=8,micro=4", "--data.window=64"},
                 config)["params"] == json["params"]);
    CHECK(json["flops_per_token"].get<double>() ==
          Approx(dry.formula_flops / static_cast<double>(units_of_micro_batch(loaded.config))));

    // A step has 256 sequences of 512 tokens. The run has 100 steps on 8 GPUs.
    const Json& one = json["fastest"][0];
    CHECK(one["tokens_per_s"].get<double>() * one["step_s"].get<double>() == Approx(256. * 512));
    CHECK(one["gpu_hours"].get<double>() == Approx(one["step_s"].get<double>() * 100 * 8 / 3600));
    CHECK(one["lathe_has_it"].get<bool>());
    CHECK(one["price"].is_null());

    // For each parameter, AdamW keeps 8 bytes of state and a 4-byte master. Lion keeps half of this
    // state.
    const auto state = [&](const char* kind) {
      return f
          .json(
              {"--card", "h100", "--layout", "data=8,micro=4,shard=0", str("--optim.kind=", kind)},
              config)["fastest"][0]["memory_bytes"]["optimizer"]
          .get<double>();
    };
    CHECK(state("adamw") == Approx(12. * static_cast<double>(dry.parameters)));
    CHECK(state("lion") == Approx(8. * static_cast<double>(dry.parameters)));
  }
}

TEST_CASE(
    "a cluster plan accounts for sliding windows and master weights, and notes what it leaves out",
    "[cluster_plan]") {
  const ConfigFolder f;
  const std::vector<std::string> words{"--card", "h100", "--layout", "data=8,micro=4,shard=0"};
  const auto json_with = [&](const std::vector<std::string>& keys) {
    std::vector<std::string> all = words;
    all.insert(all.end(), keys.begin(), keys.end());
    return f.json(all, "llama.toml");
  };
  const Json base = json_with({});
  CHECK(base["notes"].empty());

  // Every second layer has the window. The plan and the model count the same FLOPs.
  const std::vector<std::string> window{"--model.sliding_window=64", "--model.window_layers=10"};
  const Json windowed = json_with(window);
  const DryStep dry =
      dry_step(load_config((f.folder / "llama.toml").string(),
                           {{"model.sliding_window", "64"}, {"model.window_layers", "10"}}));
  CHECK(windowed["flops_per_token"].get<double>() * 4 * 512 == Approx(dry.formula_flops));
  CHECK(windowed["fastest"][0]["step_s"].get<double>() <
        base["fastest"][0]["step_s"].get<double>());

  // Without master weights, a parameter takes 4 bytes less.
  const Json low = json_with({"--amp.master=false"});
  const auto optimizer = [](const Json& plan) {
    return plan["fastest"][0]["memory_bytes"]["optimizer"].get<double>();
  };
  CHECK(optimizer(base) - optimizer(low) == Approx(4 * base["params"].get<double>()));

  for (const char* key : {"--train.task=dpo", "--train.task=distill"}) {
    INFO(key);
    CHECK(json_with({key})["notes"].size() == 1);
  }
}

TEST_CASE("a cluster plan knows which layouts Lathe refuses to train", "[cluster_plan]") {
  const ConfigFolder f;
  const auto has_it = [&](const char* layout, const char* config,
                          const std::vector<std::string>& keys) {
    std::vector<std::string> words{"--card", "h100", "--layout", layout};
    words.insert(words.end(), keys.begin(), keys.end());
    return f.json(words, config)["fastest"][0]["lathe_has_it"].get<bool>();
  };
  CHECK(has_it("tensor=4,data=2", "llama.toml", {}));
  // The Llama model has 4 key/value heads; the GPT has 16.
  CHECK(!has_it("tensor=8", "llama.toml", {}));
  CHECK(has_it("tensor=8", "gpt.toml", {}));
  CHECK(!has_it("tensor=4,data=2", "llama.toml",
                {"--model.qk_norm=true", "--model.qk_norm_over=projection"}));

  // Adafactor and adamw8bit can't update a part of a matrix. LAMB can update a part, and Muon joins
  // the parts.
  for (const auto& [kind, cuts] : {std::pair{"adafactor", false}, std::pair{"lamb", true},
                                   std::pair{"adamw8bit", false}, std::pair{"muon", true}}) {
    INFO(kind);
    const std::string key = str("--optim.kind=", kind);
    CHECK(has_it("tensor=4,data=2", "gpt.toml", {key}) == cuts);
    CHECK(has_it("data=8", "gpt.toml", {key}));
  }

  // Updates in the backward pass need one micro-batch per process, and no sharding.
  const std::vector<std::string> updating{"--memory.update_in_backward=true",
                                          "--train.batch_size=4", "--train.grad_accum=8"};
  CHECK(has_it("data=8,micro=4", "gpt.toml", updating));
  CHECK(!has_it("data=8,micro=2", "gpt.toml", updating));
  CHECK(!has_it("data=8,micro=4,shard=1", "gpt.toml", updating));

  // Keys that the layout needs may contradict other keys of the config.
  CHECK(!has_it("data=8,micro=4,recompute=full", "gpt.toml", {"--memory.saved=bf16"}));
  CHECK(has_it("data=8,micro=4,recompute=none", "gpt.toml", {"--memory.saved=bf16"}));
  CHECK(!has_it("data=8,micro=4,recompute=selective", "gpt.toml", {"--memory.budget=2GB"}));
  CHECK(!has_it("data=8,micro=1", "gpt.toml", {"--amp.dtype=fp8", "--data.window=8"}));
  CHECK(has_it("data=8,micro=2", "gpt.toml", {"--amp.dtype=fp8", "--data.window=8"}));

  // If the config sets a parallelism that the layout does not have, the plan resets it to 1.
  const Finished other = f.plan(
      {"--card", "h100", "--layout", "data=8,micro=4", "--dist.tensor=2", "--dist.context=4"});
  CHECK_THAT(other.out, ContainsSubstring("--dist.tensor=1 --dist.context=1"));
}

TEST_CASE("a cluster plan prints what the library computes", "[cluster_plan]") {
  const ConfigFolder f;
  const std::vector<std::string> words{
      "--nodes",        "2",    "--gpus",   "8",
      "--card",         "h100", "--layout", "data=4,shard=1,tensor=4",
      "--interconnect", "200G", "--price",  "2.5"};
  const Finished r = f.plan(words);
  INFO(r.err << r.out);
  REQUIRE(r.code == 0);
  for (const char* part :
       {"16 x h100", "2 nodes of 8", "200G", "exchange: data", "exchange: tensor", "mfu",
        "GPU hours", "at 2.50 per GPU hour", "trains with this layout", "--dist.tensor=4"}) {
    CHECK_THAT(r.out, ContainsSubstring(part));
  }

  std::vector<std::string> deep = words;
  deep[7] = "data=4,shard=1,pipeline=4";
  CHECK_THAT(f.plan(deep).out, ContainsSubstring("--dist.shard=optimizer --dist.pipeline=4"));
  deep[7] = "data=8,shard=1,pipeline=2,virtual=2";
  CHECK_THAT(f.plan(deep).out, ContainsSubstring("--dist.pipeline=2 --dist.virtual_stages=2"));
  deep[7] = "data=8,shard=2,pipeline=2,virtual=2";
  CHECK_THAT(f.plan(deep).out, ContainsSubstring("dist.virtual_stages above 1") &&
                                   ContainsSubstring("dist.shard = \"none\""));

  const Json one = f.json(words)["fastest"][0];
  CHECK(one["price"].get<double>() == Approx(2.5 * one["gpu_hours"].get<double>()));
  CHECK_THAT(r.out, ContainsSubstring(format("%.0f tokens/s", one["tokens_per_s"].get<double>())));

  // --software has an effect, and its default is "compiled".
  const auto seconds = [&](const std::string& flag, const std::string& value) {
    std::vector<std::string> changed = words;
    changed.insert(changed.end(), {flag, value});
    return f.json(changed)["fastest"][0]["step_s"].get<double>();
  };
  CHECK(seconds("--software", "eager") > one["step_s"].get<double>());
  CHECK(seconds("--software", "compiled") == Approx(one["step_s"].get<double>()));

  // The plan prints the config keys that select a layout, if Lathe supports the layout.
  const Finished own =
      f.plan({"--card", "h100", "--layout", "data=8,shard=3,micro=4,recompute=full"});
  CHECK_THAT(own.out, ContainsSubstring("--train.batch_size=4 --train.grad_accum=64"));
  CHECK_THAT(own.out, ContainsSubstring("--memory.recompute=blocks --dist.shard=parameters"));
  const Finished some =
      f.plan({"--card", "h100", "--layout", "data=8,shard=3,micro=4,recompute=selective"});
  CHECK_THAT(some.out, ContainsSubstring("--memory.recompute=selective --dist.shard=parameters"));
  const Finished all =
      f.plan({"--card", "h100", "--layout", "data=8,shard=3,micro=4,recompute=none"});
  CHECK_THAT(all.out, ContainsSubstring("dist.shard = \"parameters\"") &&
                          ContainsSubstring("memory.recompute = \"blocks\""));
}

TEST_CASE("a cluster plan without --layout searches for the fastest layout", "[cluster_plan]") {
  const ConfigFolder f;
  const Finished r = f.plan({"--card", "h100"});
  REQUIRE(r.code == 0);
  CHECK_THAT(r.out, ContainsSubstring("fastest that fit"));
  const Json json = f.json({"--card", "h100"});
  const Json& fastest = json["fastest"];
  REQUIRE(fastest.size() > 1);
  CHECK(fastest[0]["step_s"] <= fastest[1]["step_s"]);
  CHECK(json["tried"].get<int64_t>() > 100);

  // If --layout gives the fastest layout, the plan shows the same time.
  const Json again = f.json({"--card", "h100", "--layout", fastest[0]["layout"]});
  CHECK(again["fastest"][0]["step_s"] == fastest[0]["step_s"]);

  // With 20 billion parameters on one A10, no layout fits, and the plan states how much memory is
  // needed.
  const std::vector<std::string> large{
      "--card", "a10", "--gpus", "1", "--model.n_layer=100", "--model.n_embd=4096"};
  const Finished none = f.plan(large);
  CHECK(none.code == 10);
  CHECK_THAT(none.out, ContainsSubstring("do not fit"));
  const Json too_large = f.json(large)["too_large"][0];
  CHECK(!too_large["fits"].get<bool>());
  CHECK(too_large["memory_bytes"]["total"] > too_large["memory_bytes"]["available"]);
}

TEST_CASE("a file extends and overrides the table of GPUs", "[cluster_plan]") {
  const ConfigFolder f;
  const fs::path file = f.folder / "own.toml";
  write_file(file,
             "[[cluster.gpu]]\nname = \"mine\"\nlike = \"h100\"\nmemory_gb = 200\n"
             "[[cluster.gpu]]\nname = \"a100-80\"\nbf16_tflops = 400\n"
             "[[cluster.link]]\nname = \"ring\"\nlike = \"400G\"\nlatency_us = 1\n"
             "[[cluster.software]]\nname = \"ours\"\nlike = \"eager\"\nattention = \"flash3\"\n"
             "[constants]\nmemory_share = 0.5\n");
  const HardwareTable table = read_hardware(file.string()), &known = known_hardware();
  CHECK(table.gpu("MINE").memory_gb == 200);
  CHECK(table.gpu("mine").bf16_tflops == known.gpu("h100").bf16_tflops);
  CHECK(table.gpu("a100-80").bf16_tflops == 400);
  CHECK(table.gpu("a100-80").memory_gb == known.gpu("a100-80").memory_gb);
  CHECK(table.link("ring").latency_us == 1);
  CHECK(table.link("25G").gb_per_second == 25 / 8.);
  CHECK(table.program("ours").attention == "flash3");
  CHECK(table.program("ours").elementwise_passes == known.program("eager").elementwise_passes);
  CHECK(table.constants.memory_share == 0.5);
  CHECK(known.constants.memory_share != 0.5);

  const Json json = f.json({"--cards", "own.toml", "--card", "mine", "--interconnect", "ring",
                            "--software", "ours", "--layout", "data=8,micro=4"});
  CHECK(json["card"] == "mine");
  CHECK(json["fastest"][0]["memory_bytes"]["available"].get<double>() == 200e9);

  // Errors name the fault and the file.
  struct Wrong {
    const char *text, *expected;
  };
  for (const Wrong& w : std::vector<Wrong>{
           {"[[cluster.gpu]]\nmemory_gb = 3\n", "name = \"...\""},
           {"[[cluster.gpu]]\nname = \"x\"\n", "cluster.gpu x"},
           {"[[cluster.gpu]]\nname = \"x\"\nlike = \"y\"\n", "not exist"},
           {"[[cluster.gpu]]\nname = \"h100\"\nmemory_bg = 3\n", "memory_gb"},
           {"[[cluster.gpu]]\nname = \"h100\"\nmemory_gb = -3\n", "memory_gb"},
           {"[[cluster.gpu]]\nname = 3\n", "a string"},
           {"[cluster]\ngpu = 3\n", "[[cluster.gpu]]"},
           {"[constants]\nspeed = 3\n", "speed"},
           {"[other]\nkey = 3\n", "other.key"},
           {"[[cluster.software]]\nname = \"eager\"\nattention = \"fast\"\n", "attention"}}) {
    INFO(w.text);
    write_file(file, w.text);
    const std::string error = error_of([&] { read_hardware(file.string()); });
    CHECK_THAT(error, ContainsSubstring(w.expected));
    CHECK_THAT(error, ContainsSubstring("own.toml:"));
    CHECK(error.find('\n') == std::string::npos);
    CHECK(f.plan({"--card", "h100", "--cards", "own.toml"}).code == 2);
  }
}

TEST_CASE("wrong input of a cluster plan is refused with a message", "[cluster_plan]") {
  const ConfigFolder f;
  write_file(f.folder / "mlp.toml", "[model]\nkind = \"mlp\"\n");
  struct Wrong {
    std::vector<std::string> words;
    std::string expected;
    const char* config = "gpt.toml";
  };
  const std::vector<Wrong> cases{
      {{"--nodes", "2"}, "--card"},
      {{"--card", "h1000"}, "h100-pcie"},
      {{"--card", "\x1b[31mred"}, "\\x1b"},
      {{"--card", "h100", "--nodes", "0"}, "--nodes"},
      {{"--card", "h100", "--gpus", "many"}, "--gpus"},
      {{"--card", "h100", "--interconnect", "fast"}, "--interconnect"},
      {{"--card", "h100", "--interconnect", "0G"}, "--interconnect"},
      {{"--card", "h100", "--software", "x"}, "megatron"},
      {{"--card", "h100", "--price", "-1"}, "--price"},
      {{"--card", "h100", "--cards", "absent.toml"}, "absent.toml"},
      {{"--card", "h100", "--ranks", "2"}, "--ranks"},
      {{"--card", "h100", "--fit"}, "--fit"},
      {{"--card", "h100", "--for", "A10"}, "--for"},
      {{"--card", "h100", "--layout", ""}, "empty"},
      {{"--card", "h100", "--layout", "data=8,data=8"}, "twice"},
      {{"--card", "h100", "--layout", "tp=8"}, "\"tp=8\""},
      {{"--card", "h100", "--layout", "data=0"}, "whole number from 1"},
      {{"--card", "h100", "--layout", "shard=4"}, "0 to 3"},
      {{"--card", "h100", "--layout", "recompute=most"}, "selective"},
      {{"--card", "h100", "--layout", "data=4"}, "has 8"},
      {{"--card", "h100", "--layout", "tensor=3"}, "multiple of 3"},
      {{"--card", "h100", "--layout", "data=999999,tensor=999999,pipeline=999999"}, "has 8"},
      {{"--card", "h100", "--gpus", "3", "--layout", "tensor=3"}, "16 heads"},
      {{"--card", "h100", "--layout", "micro=3"}, "256 sequences"},
      {{"--card", "h100", "--layout", "data=1,pipeline=8,virtual=2"}, "16 parts"},
      {{"--card", "h100", "--layout", "virtual=2"}, "at least 2 stages"},
      {{"--card", "h100", "--gpus", "5", "--layout", "context=5"}, "512 tokens"},
      {{"--card", "a100-80", "--amp.dtype=fp8"}, "fp8"},
      {{"--card", "h100", "--model.vocab_size=0"}, "vocab_size"},
      {{"--card", "h100"}, "gpt and llama", "mlp.toml"}};
  for (const Wrong& w : cases) {
    std::string shown = w.config;
    for (const std::string& word : w.words) shown += " " + printable_line(word);
    const Finished r = f.plan(w.words, w.config);
    INFO(shown << "\n" << r.err);
    CHECK(r.code == 2);
    CHECK(r.out.empty());
    CHECK_THAT(r.err, ContainsSubstring(w.expected));
    CHECK(r.err.find('\x1b') == std::string::npos);
  }

  // Valid arguments are accepted.
  CHECK(f.plan({"--card", "h100", "--layout", "data=8,shard=3,micro=4"}).code == 0);
  CHECK(f.plan({"--card", "H100", "--amp.dtype=fp8", "--interconnect", "25G"}).code == 0);
}

TEST_CASE("notes point out layouts that work but are probably not intended", "[cluster_plan]") {
  const ConfigFolder f;
  const auto notes = [&](const char* layout) {
    return f
        .plan({"--card", "h100", "--gpus", "4", "--nodes", "2", "--layout", layout}, "llama.toml")
        .out;
  };
  CHECK_THAT(notes("tensor=8"), ContainsSubstring("the 4 GPUs"));
  CHECK_THAT(notes("tensor=8"), ContainsSubstring("the 4 heads"));
  CHECK_THAT(notes("data=1,pipeline=8,micro=64"), ContainsSubstring("micro-batches (4)"));
  CHECK_THAT(notes("data=2,pipeline=4,virtual=2,micro=64"),
             ContainsSubstring("the 2 micro-batches"));
  CHECK_THAT(notes("data=8,micro=4"), !ContainsSubstring("note"));
}

}  // namespace
