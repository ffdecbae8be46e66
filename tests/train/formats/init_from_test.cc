// Tests of runs that start from the weights of another run or of a Hugging Face folder
// (train.init_from).
#include <cstdlib>
#include <sstream>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "tests/train/formats/small_runs.h"
#include "train/formats/gguf.h"
#include "train/formats/hugging_face.h"
#include "train/formats/source.h"
#include "train/transforms/adapters.h"

namespace {

using namespace lathe;
using namespace lathe::test;

double first_loss(const fs::path& run) {
  std::istringstream lines(slurp(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json.contains("val_loss")) return json["val_loss"].get<double>();
  }
  return -1;
}

TEST_CASE("a run starts from another run's weights, and resumes without that run", "[init_from]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(
              f, {"train", "tiny.toml", "--train.out_dir=a", "--train.steps=12", "--optim.lr=0.01"})
              .code == 0);
  const double end = *read_state(find_checkpoint(f / "a")).val_loss;

  // The config has no keys of [model], since they come from the run.
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 2\nbatch_size = 3\neval_interval = "
             "2\neval_batches = 3\nthreads = 1\n");
  const auto tune = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "tune.toml", "--train.out_dir=" + out});
    return lathe_in(f, more);
  };

  REQUIRE(tune("b", {"--train.init_from=a"}).code == 0);
  CHECK(std::abs(first_loss(f / "b") - end) < 1e-9);
  CHECK(first_loss(f / "a") > end + 0.1);  // random weights have a higher loss
  REQUIRE(tune("c", {"--train.init_from=a/checkpoints/step-00000010"}).code == 0);
  CHECK(first_loss(f / "c") != end);

  // Commands that train without a run folder also use the source's model. The config has no sizes.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"profile", "tune.toml", "--steps=0:1"},
        {"find", "lr", "tune.toml", "--steps=10"},
        {"bench", "step", "tune.toml"}}) {
    std::vector<std::string> words = command;
    words.emplace_back("--train.init_from=a");
    const Finished done = lathe_in(f, words);
    INFO(words[0] << done.err);
    CHECK(done.code == 0);
    words.emplace_back("--model.n_embd=48");
    CHECK_THAT(lathe_in(f, words).err, ContainsSubstring("model.n_embd"));  // set by the source
  }

  // They do so even if train.out_dir is the folder of a run, and train resumes this run.
  const auto suggested = [&](const std::string& out) {
    const Finished done = lathe_in(f, {"bench", "step", "tune.toml", "--train.init_from=a",
                                       "--train.out_dir=" + out, "--skip=0"});
    INFO(done.err);
    REQUIRE(done.code == 0);
    const std::string line = done.out.substr(done.out.rfind("\n{") + 1);
    return parse_json(line, "bench", Exit::internal)["final_loss"].get<double>();
  };
  CHECK(suggested("b") == suggested("unused"));

  const auto refused = [&](const std::vector<std::string>& more, int code, const std::string& what,
                           const std::string& also) {
    const Finished done = tune("x", more);
    CHECK(done.code == code);
    CHECK_THAT(done.err, ContainsSubstring(what) && ContainsSubstring(also));
    CHECK(!fs::exists(f / "x"));
  };
  refused({"--train.init_from=a", "--model.n_layer=3"}, 2, "model.n_layer = 3", "train.init_from");
  refused({"--train.init_from=none"}, 4, "train.init_from: none ", "checkpoint");
  write_file(f / "other.txt", "0123456789 other letters than before XYZ " + sample_text(5000));
  REQUIRE(lathe_in(f, {"prepare", "other.txt", "--out", "other", "--tokenizer", "char"}).code == 0);
  refused({"--train.init_from=a", "--data.dir=other"}, 3, "--tokenizer a", "another tokenizer");

  // Adapters are added to the model that init_from names.
  REQUIRE(tune("d", {"--train.init_from=a", "--adapters.rank=2"}).code == 0);
  CHECK(std::abs(first_loss(f / "d") - end) < 1e-6);
  CHECK(read_state(find_checkpoint(f / "d")).config.find("base = \"a\"") != std::string::npos);
  refused({"--train.init_from=a", "--adapters.rank=2", "--adapters.base=b"}, 2,
          "train.init_from = \"a\"", "adapters.base = \"b\"");

  fs::rename(f / "a", f / "gone");
  const Finished on = tune("b", {"--train.init_from=a", "--train.steps=4"});
  INFO(on.err);
  CHECK(on.code == 0);
  CHECK(read_state(find_checkpoint(f / "b")).step == 4);
}

TEST_CASE("a given key of [model] agrees with the source of the weights, or is refused",
          "[init_from]") {
  const TempFolder f;
  const Values llama{{"n_layer", int64_t{2}},     {"n_head", int64_t{3}},
                     {"n_embd", int64_t{24}},     {"n_kv_head", int64_t{1}},
                     {"block_size", int64_t{32}}, {"dropout", 0.25},
                     {"vocab_size", int64_t{259}}};
  make_run(f, "source", "llama", llama);
  const std::string source = (f / "source").string();

  // If no kind is given, the config has the default kind gpt. The kind of the source is llama.
  const auto resolve = [&](const std::string& text, Overrides more, const char* by) {
    write_file(f / "c.toml", text);
    more.insert(more.end(), {{by, source}, {"train.out_dir", (f / "new").string()}});
    if (by == std::string("adapters.base")) more.emplace_back("adapters.rank", "2");
    return resolve_sources(load_config((f / "c.toml").string(), more)).config;
  };
  for (const char* by : {"train.init_from", "adapters.base"}) {
    INFO(by);
    // `also` is the key that names the source, for errors about a key that disagrees with the
    // source.
    const auto refused = [&](const std::string& text, const Overrides& more,
                             const std::string& what, const std::string& also = "") {
      CHECK_THAT(error_of([&] { resolve(text, more, by); }),
                 ContainsSubstring(what) && ContainsSubstring(also));
    };
    for (const char* kind : {"", "[model]\nkind = \"llama\"\n"}) {
      refused(kind, {{"model.n_layer", "5"}}, "command line: model.n_layer = 5", by);
      refused(kind, {{"model.block_size", "16"}}, "command line: model.block_size = 16", by);
      refused(kind, {{"model.n_kv_head", "3"}}, "command line: model.n_kv_head = 3", by);
    }
    refused("[model]\nn_layer = 5\n", {}, "c.toml:2:1: model.n_layer = 5", by);
    refused("[model]\nbias = false\n", {}, "c.toml:2:1: model.bias ", by);
    refused("[model]\nkind = \"gpt\"\n", {}, "c.toml:2:1: model.kind = \"gpt\"", by);
    refused("", {{"model.n_lyer", "5"}}, "no key model.n_lyer");
    refused("", {{"model.n_kv_head", "x"}}, "command line: --model.n_kv_head=x: ");
    setenv("LATHE_MODEL_QK_NORM", "true", 1);
    refused("", {}, "LATHE_MODEL_QK_NORM: model.qk_norm = true", by);
    unsetenv("LATHE_MODEL_QK_NORM");

    // Keys that agree with the source are accepted, even if defaults of other keys contradict them.
    for (const char* kind : {"", "[model]\nkind = \"llama\"\n"}) {
      const RunConfig c = resolve(
          kind, {{"model.n_head", "3"}, {"model.n_kv_head", "1"}, {"model.vocab_size", "0"}}, by);
      CHECK(c.model.kind == "llama");
      CHECK(*c.model.own.find<int64_t>("n_embd") == 24);
      CHECK(*c.model.own.find<int64_t>("vocab_size") == 259);
      CHECK(*c.model.own.find<double>("dropout") == 0);  // the value of the config
      CHECK(*resolve(kind, {{"model.dropout", "0.5"}}, by).model.own.find<double>("dropout") ==
            0.5);
    }
  }
  CHECK_THAT(error_of([&] {
               write_file(f / "c.toml", "");
               load_config((f / "c.toml").string(), {{"model.n_kv_head", "3"}});
             }),
             ContainsSubstring("model.n_kv_head") && ContainsSubstring("model.kind = \"llama\"") &&
                 ContainsSubstring("\"gpt\""));
}

TEST_CASE("data.window may be shorter than the model's context, which stays the same",
          "[init_from]") {
  const TempFolder f;
  make_run(f, "source", "gpt", with(gpt, "block_size", int64_t{4096}));
  write_file(f / "few.txt", sample_text(3000));
  REQUIRE(lathe_in(f, {"prepare", "few.txt", "--out", "data", "--tokenizer", "source"}).code == 0);
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 3\nbatch_size = 2\neval_interval = 3\n"
             "eval_batches = 0\nthreads = 1\ninit_from = \"source\"\n");
  const auto tune = [&](std::vector<std::string> more, const std::string& command = "train") {
    more.insert(more.begin(), {command, "tune.toml"});
    return lathe_in(f, more);
  };

  // A run without data.window is refused, since the context is longer than the text.
  const Finished long_one = tune({});
  CHECK(long_one.code == 3);
  CHECK_THAT(long_one.err, ContainsSubstring("data.window"));

  const Finished done = tune({"--data.window=8"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  const RunState state = read_state(find_checkpoint(f / "runs/tune"));
  CHECK(state.tokens == 3 * 2 * 8);
  CHECK(model_context(saved_config(state, "")) == 4096);
  const Finished resumed = tune({"--data.window=16", "--train.steps=4"});
  CHECK(resumed.code == 2);
  CHECK_THAT(resumed.err, ContainsSubstring("data.window = 16") && ContainsSubstring(" 8"));

  // An evaluation uses the run's windows, and an export has the model's context.
  const Finished eval = lathe_in(f, {"eval", "runs/tune"});
  REQUIRE(eval.code == 0);
  const Json scored = parse_json(eval.out, "", Exit::internal);
  CHECK(scored["val_loss"].get<double>() == *state.val_loss);
  export_hugging_face({.run = f / "runs/tune", .out = f / "hf"});
  CHECK(Json::parse(slurp(f / "hf/config.json"))["n_positions"] == 4096);
  export_gguf({.run = f / "runs/tune", .out = f / "gguf"});
  CHECK(slurp(f / "gguf/model.gguf").find("context_length") != std::string::npos);

  // A context longer than the context of the folder's model is refused.
  const Finished above =
      tune({"--train.init_from=hf", "--model.block_size=5000", "--train.out_dir=x"});
  CHECK(above.code == 2);
  CHECK_THAT(above.err,
             ContainsSubstring("command line: model.block_size = 5000") && ContainsSubstring("hf"));

  // If the context fits and another key does not, the error names that key.
  const Finished deeper = tune({"--train.init_from=hf", "--model.block_size=4096",
                                "--model.n_layer=9", "--train.out_dir=x"});
  CHECK(deeper.code == 2);
  CHECK_THAT(deeper.err, ContainsSubstring("command line: model.n_layer = 9"));

  // A plan counts the work of the windows, not of the context.
  const auto plan = [&](const char* window) {
    const Finished planned = tune({window, "--train.batch_size=1", "--json"}, "plan");
    INFO(planned.err);
    REQUIRE(planned.code == 0);
    return parse_json(planned.out, "", Exit::internal)["flops_per_step"].get<double>();
  };
  CHECK(plan("--data.window=64") > 7.5 * plan("--data.window=8"));
  CHECK(tune({"--data.window=8", "--steps=0:1"}, "profile").code == 0);
  CHECK_THAT(tune({"--data.window=5000", "--train.out_dir=x"}).err,
             ContainsSubstring("command line: data.window = 5000") &&
                 ContainsSubstring("model.block_size = 4096"));
  CHECK(!fs::exists(f / "x"));
}

TEST_CASE("an import reports what it read, and can ignore keys that --ignore-key names",
          "[init_from]") {
  const TempFolder f;
  export_hugging_face({.run = make_run(f, "run", "gpt", gpt), .out = f / "hf"});
  Json config = Json::parse(slurp(f / "hf/config.json"));
  config["_attn_implementation_autoset"] = true;
  const auto import = [&](const std::string& out, std::vector<std::string> more = {}) {
    write_file(f / "hf/config.json", config.dump());
    more.insert(more.begin(), {"import", "hf", "--out", out});
    return lathe_in(f, more);
  };
  const Finished done = import("plain");
  REQUIRE(done.code == 0);
  CHECK_THAT(done.out + done.err, ContainsSubstring("context of 16 "));
  CHECK_THAT(done.out + done.err, ContainsSubstring("end with <|endoftext|>"));
  CHECK_THAT(done.out + done.err, ContainsSubstring("--train.init_from=plain"));

  config["made_by"] = "us";
  config["x"] = 3;
  CHECK_THAT(import("x").err, ContainsSubstring("--ignore-key made_by"));
  CHECK(import("x", {"--ignore-key", "made_by"}).code == 4);
  REQUIRE(import("ignored", {"--ignore-key", "made_by", "--ignore-key", "x"}).code == 0);
  const RunState state = read_state(find_checkpoint(f / "ignored"));
  CHECK(state.ignored_keys == std::vector<std::string>{"made_by", "x"});
  CHECK(state.imported_from == "hf");
  CHECK_THAT(lathe_in(f, {"inspect", "ignored"}).out,
             ContainsSubstring("imported from hf; ignored keys: made_by, x"));
  for (const char* key : {"n_positions", "nothing", "model_type"}) {
    INFO(key);
    const Finished refused =
        import("x", {"--ignore-key", "made_by", "--ignore-key", "x", "--ignore-key", key});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, ContainsSubstring(std::string("--ignore-key ") + key));
  }
  CHECK(!fs::exists(f / "x"));

  // An imported model is listed as imported, and the run's name may be given as a tokenizer.
  const Json listed = Json::parse(lathe_in(f, {"runs", ".", "--json"}).out);
  for (const Json& run : listed) {
    if (run["run"].get<std::string>().find("plain") == std::string::npos) continue;
    CHECK(run["state"] == "imported");
    CHECK(run["steps"] == 0);
  }
  CHECK(listed.size() == 3);
  write_file(f / "a.txt", "the");
  CHECK(lathe_in(f, {"tokenizer", "encode", "a.txt", "--tokenizer", "plain"}).out == "257\n");
  CHECK(lathe_in(f, {"tokenizer", "inspect", "--tokenizer", "plain"}).code == 0);
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=chars", "--train.steps=1"}).code ==
          0);
  const Finished chars = lathe_in(f, {"tokenizer", "inspect", "--tokenizer", "chars"});
  CHECK(chars.code == 2);
  CHECK_THAT(chars.err, ContainsSubstring("the run chars ") && ContainsSubstring("kind char"));
}

}  // namespace
