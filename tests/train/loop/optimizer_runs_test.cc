// Tests of optimizers in runs: every kind resumes bit for bit, a config can set parameter groups
// and a moving average of the weights, and plans count the memory of the optimizer state.
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "optim/config.h"
#include "optim/method.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/analysis/forecast.h"
#include "train/session/load.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("every optimizer, with parameter groups and averaged weights, resumes bit for bit",
          "[optimizer_runs]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path(),
                "[[optim.groups]]\nmatch = \"*.bias\"\nlr_scale = 0.5\n[[optim.groups]]\nmatch = "
                "\"tokens.*\"\n"
                "weight_decay = 0\n");

  for (const std::string& kind : optimizer_names()) {
    INFO(kind);
    OptimConfig config;
    config.kind = kind;
    const std::string device = make_method(config)->runs_on_gpu() ? "auto" : "cpu";

    const auto train = [&](const std::string& out, const std::string& extra) {
      return lathe_in(f,
                      {"train", "tiny.toml", "--train.out_dir=" + out, "--train.steps=9",
                       "--train.eval_interval=0", "--train.threads=1", "--train.device=" + device,
                       "--optim.ema_decay=0.9", "--optim.kind=" + kind, extra});
    };

    const std::string whole = kind + "_whole", parts = kind + "_parts";
    const Finished first = train(whole, "--train.log_interval=1");
    INFO(first.err);
    REQUIRE(first.code == 0);
    REQUIRE(train(parts, "--train.max_time=0.01").code == 75);
    REQUIRE(train(parts, "--train.log_interval=1").code == 0);

    const auto last = [&](const std::string& run) { return list_checkpoints(f / run).at(0); };
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(slurp(last(whole) / file) == slurp(last(parts) / file));
    const SafetensorsFile state(last(whole) / "optimizer.safetensors");
    CHECK(state.find("tokens.weight.ema") != nullptr);
  }

  // A different optimizer must give different weights.
  CHECK(slurp(list_checkpoints(f / "adam_whole").at(0) / "model.safetensors") !=
        slurp(list_checkpoints(f / "adamw_whole").at(0) / "model.safetensors"));
}

TEST_CASE("eval and generate use the average of the weights if requested", "[optimizer_runs]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--optim.ema_decay=0.8", "--optim.lr=0.01"}).code ==
          0);
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=none", "--train.steps=2"}).code == 0);

  const auto loss = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"eval", "runs/tiny"});
    const Finished r = lathe_in(f, words);
    INFO(r.err);
    REQUIRE(r.code == 0);
    return parse_json(r.out.substr(r.out.rfind('{')), "eval", Exit::internal)["val_loss"]
        .get<double>();
  };

  const double plain = loss({}), average = loss({"--weights", "ema"});
  CHECK(plain == loss({"--weights", "model"}));
  CHECK(plain != average);

  // The weights of the loaded model are the averages that the optimizer saved.
  const LoadedModel m =
      LoadedModel::open(f / "runs/tiny", "cpu", 1, "", false, "newest", /*average=*/true);
  const fs::path file = list_checkpoints(f / "runs/tiny").at(0) / "optimizer.safetensors";
  const SafetensorsFile state(file);
  for (const auto& p : parameters(*m.model))
    CHECK(p.parameter.data().equal(
        entry_tensor(state.at(p.path + ".ema"), p.parameter.sizes(), file)));
  CHECK(lathe_in(f, {"generate", "runs/tiny", "--weights", "ema", "--tokens", "5"}).code == 0);

  const auto refused = [&](std::vector<std::string> words, const std::string& text) {
    const Finished r = lathe_in(f, words);
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring(text));
  };
  refused({"eval", "none", "--weights", "ema"}, "optim.ema_decay");
  refused({"eval", "runs/tiny", "--weights", "mean"}, "not mean");
  refused({"eval", "runs/tiny", "--weights", "ema", "--load-dtype", "bf16"}, "--load-dtype");
}

TEST_CASE("groups in a config file are saved, compared on resume, and named in errors",
          "[optimizer_runs]") {
  const TempFolder f(fast_folder());
  const std::string groups = "[[optim.groups]]\nmatch = \"*.bias\"\nlr_scale = 0.5\n";
  make_tiny_run(f.path(), groups);
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=4"}).code == 0);
  CHECK_THAT(slurp(f / "runs/tiny/config.toml"),
             ContainsSubstring("groups = [{match = \"*.bias\", lr_scale = 0.5}]"));

  const Finished same = lathe_in(f, {"train", "tiny.toml", "--train.steps=6"});
  CHECK(same.code == 0);
  CHECK(same.out.find("optim.groups") == std::string::npos);
  const Finished changed = lathe_in(f, {"train", "tiny.toml", "--train.steps=8",
                                        "--optim.groups=[{match = \"*.bias\", lr_scale = 0.25}]"});
  CHECK(changed.code == 0);
  CHECK_THAT(changed.out, ContainsSubstring("optim.groups [{match = \"*.bias\""));

  const auto refused = [&](const std::string& value, const std::string& text,
                           const std::string& also) {
    const Finished r =
        lathe_in(f, {"train", "tiny.toml", "--train.out_dir=other", "--optim.groups=" + value});
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring(text) && ContainsSubstring(also));
    CHECK(!fs::exists(f / "other"));
  };
  refused("[{match = \"*.bais\"}]", "command line: optim.groups: match = \"*.bais\"",
          "no parameter");
  refused("[{mach = \"*.bias\"}]", "command line: optim.groups, group 1: ", "key mach");
  refused("3", "optim.groups", "tables");
  const Finished r =
      lathe_in(f, {"train", "tiny.toml", "--train.out_dir=other", "--optim.lr=[{match = \"*\"}]"});
  CHECK_THAT(r.err, ContainsSubstring("optim.lr ") && ContainsSubstring("number") &&
                        ContainsSubstring("[{match = \"*\"}]"));
}

TEST_CASE("a plan counts the state of an optimizer", "[optimizer_runs]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto bytes = [&](Overrides keys) {
    keys.insert(
        keys.end(),
        {{"data.dir", (f / "data").string()}, {"model.n_embd", "128"}, {"model.n_head", "4"}});
    const DryStep dry = dry_step(load_config((f / "tiny.toml").string(), keys));
    return static_cast<double>(dry.made.used[static_cast<size_t>(Memory::optimizer)]);
  };
  const double adam = bytes({{"optim.kind", "adamw"}});
  const auto share = [&](const std::string& kind) { return bytes({{"optim.kind", kind}}) / adam; };
  CHECK(bytes({{"optim.kind", "adamw"}, {"optim.amsgrad", "true"}}) / adam ==
        Approx(1.5).epsilon(0.02));
  CHECK(bytes({{"optim.kind", "adamw"}, {"optim.ema_decay", "0.9"}}) / adam ==
        Approx(1.5).epsilon(0.02));
  CHECK(share("lion") == Approx(0.5).epsilon(0.02));
  // adam8bit takes two bytes for each element instead of eight, and two scales of four bytes for
  // each 256 elements. The state of small tensors stays in float32.
  CHECK(share("adam8bit") > 0.25);
  CHECK(share("adam8bit") < 0.31);
  CHECK(share("muon") < 0.6);
  CHECK(share("adafactor") < 0.05);
}

}  // namespace
