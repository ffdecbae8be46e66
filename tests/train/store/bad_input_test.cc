// Tests how functions that read files, text and numbers handle input that is wrong, huge or
// changed.
#include <sys/resource.h>

#include <ctime>
#include <fstream>
#include <limits>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "data/loader.h"
#include "data/tokens/sampler.h"
#include "data/tokens/token_data.h"
#include "optim/schedule.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

constexpr int64_t most = std::numeric_limits<int64_t>::max();

template <class F>
Exit code_of(F&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.code();
  }
  return Exit::done;
}

/// Returns a data manifest without the checksum of the manifest itself, as older builds wrote it.
Json manifest_json() {
  return parse_json(
      R"({"format": "lathe-data-1", "tokenizer": "byte", "vocab_size": 256, "largest_id": 120,
    "dtype": "uint16", "train": [{"file": "train.bin", "tokens": 40, "xxh3": "0"}],
    "val": [{"file": "val.bin", "tokens": 20, "xxh3": "0"}]})",
      "", Exit::internal);
}

TEST_CASE("numbers of a data manifest outside their ranges are refused", "[bad_input]") {
  const TempFolder f;
  const auto refused = [&](const Json& manifest, const std::vector<std::string>& facts) {
    write_file(f / "manifest.json", manifest.dump());
    INFO(manifest.dump());
    const std::string refusal = error_of([&] { read_manifest(f.path()); });
    for (const std::string& fact : facts) CHECK_THAT(refusal, ContainsSubstring(fact));
    CHECK(code_of([&] { read_manifest(f.path()); }) == Exit::data);
  };

  write_file(f / "manifest.json", manifest_json().dump());
  CHECK(read_manifest(f.path())->vocab_size == 256);
  CHECK(RunConfig::schema("gpt").find("model.vocab_size")->rule.max ==
        static_cast<double>(max_vocab_size));

  const std::vector<Json> wrong{-1,         0,
                                10'000'001, int64_t{1} << 32,
                                most,       std::numeric_limits<uint64_t>::max(),
                                2.5,        1e30,
                                true,       "300",
                                Json()};
  for (const Json& value : wrong) {
    Json m = manifest_json();
    m["vocab_size"] = value;
    refused(m, {"\"vocab_size\" is " + value.dump(), "1 to 10000000"});
    m = manifest_json();
    if (value != Json(0)) {
      m["largest_id"] = value;
      refused(m, {"\"largest_id\" is " + value.dump(), "0 to 10000000"});
    }
  }
  for (const Json& value :
       {Json(-1), Json(most), Json(1e18), Json(std::numeric_limits<uint64_t>::max())}) {
    Json m = manifest_json();
    m["train"][0]["tokens"] = value;
    refused(m, {"\"tokens\" is " + value.dump()});
  }

  // Each of these numbers is allowed, but not together with the others.
  Json m = manifest_json();
  m["largest_id"] = 256;
  refused(m, {"vocab_size 256", "id 256"});
  m = manifest_json();
  m["vocab_size"] = 200;
  m["largest_id"] = 1;
  refused(m, {"vocab_size 200", "tokenizer's 256"});
  m = manifest_json();
  m["train"].push_back(m["train"][0]);
  m["train"][0]["tokens"] = (int64_t{1} << 60) - 39;
  refused(m, {"\"tokens\" is 40", "0 to 39"});

  for (const std::string& name : {std::string("a/b"), std::string(), std::string("a\0b", 3)}) {
    m = manifest_json();
    m["val"][0]["file"] = name;
    refused(m, {"\"file\"", "same folder"});
  }
  m = manifest_json();
  m["train"] = Json(m["train"][0]);
  refused(m, {"\"train\"", "list"});
}

Json state_json() {
  return parse_json(
      R"({"step": 40, "updates": 38, "tokens": 900, "threads": 2, "isa": "i", "device": "d",
    "data_hash": "h", "metrics_bytes": 77, "config": "", "eval_due": true, "val_loss": 2.5, "best_val_loss": 1.5,
    "scaler": {"loss_scale": 512, "growth_tracker": 4, "skipped": 2, "skipped_in_row": 1},
    "tokenizer": {"kind": "char", "vocabulary": ["a", "b"]}})",
      "", Exit::internal);
}

TEST_CASE("numbers of state.json outside their ranges are refused", "[bad_input]") {
  const TempFolder f;
  const auto read = [&](const Json& state) {
    write_file(f / "state.json", state.dump());
    return read_state(f.path());
  };
  CHECK(read(state_json()).step == 40);
  const auto refused = [&](const Json& state, const std::vector<std::string>& facts) {
    INFO(state.dump());
    const std::string refusal = error_of([&] { read(state); });
    CHECK_THAT(refusal, ContainsSubstring("state.json"));
    for (const std::string& fact : facts) CHECK_THAT(refusal, ContainsSubstring(fact));
    CHECK(code_of([&] { read(state); }) == Exit::checkpoint);
  };

  const std::vector<std::pair<const char*, const char*>> ranges{
      {"step", "0 to 1000000000000000"},
      {"updates", "0 to 40"},
      {"tokens", "0 to 4611686018427387903"},
      {"threads", "1 to 4096"},
      {"metrics_bytes", "0 to 9223372036854775807"}};
  for (const auto& [key, range] : ranges) {
    for (const Json& value : {Json(-5), Json(std::numeric_limits<uint64_t>::max()), Json(1e30),
                              Json(1.5), Json("3"), Json(true), Json::array({1})}) {
      Json state = state_json();
      state[key] = value;
      refused(state, {str("\"", key, "\" is "), range});
    }
    Json state = state_json();
    state.erase(key);
    refused(state, {str("\"", key, "\""), "missing"});
  }
  Json state = state_json();
  state["threads"] = 100000;
  refused(state, {"\"threads\" is 100000", "1 to 4096"});
  state = state_json();
  state["updates"] = 41;
  refused(state, {"\"updates\" is 41"});

  for (const char* key : {"growth_tracker", "skipped", "skipped_in_row"}) {
    for (const Json& value : {Json(-1), Json(int64_t{1} << 40), Json(0.5)}) {
      state = state_json();
      state["scaler"][key] = value;
      refused(state, {str("\"", key, "\" is ")});
    }
  }
  for (const Json& value : {Json(0), Json(-1), Json(1e300), Json("inf"), Json("nan")}) {
    state = state_json();
    state["scaler"]["loss_scale"] = value;
    refused(state, {"\"loss_scale\" is "});
  }

  // Fields with a wrong type, a wrong value or a missing partner.
  state = state_json();
  state["scaler"] = 3;
  refused(state, {"loss_scale"});
  state = state_json();
  state["eval_due"] = 1;
  refused(state, {"eval_due"});
  state = state_json();
  state.erase("best_val_loss");
  refused(state, {"best_val_loss"});  // val_loss needs best_val_loss
  state = state_json();
  state["val_loss"] = "much";
  refused(state, {"val_loss"});
  state["val_loss"] = "nan";
  CHECK(std::isnan(*read(state).val_loss));
  state = state_json();
  state["tokenizer"]["vocabulary"] = {"a", "a"};
  refused(state, {"twice"});
  CHECK(code_of([] { config_from_toml("[train]\nthreads = 100000\n", "x"); }) == Exit::checkpoint);

  // Each of these values is allowed, but not together with the others.
  for (const std::string& toml : {std::string("[model]\nkind = \"gpt\"\nn_head = 1000\n"),
                                  std::string("[adapters]\nrank = 4\nbase = \"\"\n")}) {
    INFO(toml);
    CHECK_THAT(error_of([&] { config_from_toml(toml, "x"); }), Catch::Matchers::StartsWith("x: "));
    CHECK(code_of([&] { config_from_toml(toml, "x"); }) == Exit::checkpoint);
  }
  state = state_json();
  state["config"] = "[model]\nkind = \"gpt\"\nvocab_size = 1\n";
  const RunState longer = read(state);
  CHECK_THAT(error_of([&] { saved_config(longer, f.path()); }),
             ContainsSubstring("state.json: ") && ContainsSubstring("2 tokens") &&
                 ContainsSubstring("vocabulary of 1"));
  CHECK(code_of([&] { saved_config(longer, f.path()); }) == Exit::checkpoint);
}

TEST_CASE("a checkpoint's step is the one in state.json, whatever the name of its folder",
          "[bad_input]") {
  const TempFolder f;
  fs::create_directories(f / "step-00000099");
  write_file(f / "step-00000099/state.json", state_json().dump());
  CHECK(read_state(f / "step-00000099").step == 40);
}

TEST_CASE("TOML with more than 8 nested levels is refused, and text with dots is accepted",
          "[bad_input]") {
  const auto times = [](const std::string& what, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += what;
    return text;
  };
  const auto problem = [](const std::string& text) {
    return error_of([&] { parse_toml(text, "c.toml"); });
  };

  constexpr int deep = 250'000;
  for (const std::string& text :
       {times("a.", deep) + "a = 1\n", "[" + times("a.", deep) + "a]\n",
        "[[" + times("a.", deep) + "a]]\n", "[t]\nk = " + times("[", deep) + times("]", deep),
        "[t]\nk = " + times("{a=", deep) + "1" + times("}", deep),
        "[t]\nk = {" + times("a . ", deep) + "a = 1}", times("\"a\".", deep) + "a = 1",
        times("''.", deep) + "a = 1",
        "[t]\nk = {x = \"\"\"a\"\"\"\", " + times("a.", deep) + "a = 1}",
        "[t]\nk = '\\'\n" + times("a.", deep) + "a = 1"})
    CHECK_THAT(problem(text), ContainsSubstring("c.toml:") && ContainsSubstring("8 levels"));
  CHECK_THAT(problem("[t]\n\n" + times("a.", deep) + "a = 1\n"), ContainsSubstring("c.toml:3:1"));

  // Dots and brackets in comments and strings are not levels.
  const std::string dots = times(".[{", 1000);
  CHECK(problem("# " + dots + "\n[t]\na = '" + dots + "' # " + dots + "\nb = \"\\\"" + dots +
                "\"\nc = \"\"\"\n" + dots + "\"\"\"\"\"\nd = '''" + dots + "'" + dots + "'''\n") ==
        "");

  // On a command line, a value with too many levels is read as text.
  for (const std::string& text :
       {times("[", deep), times("{a=", deep), times("{a.", deep), dots, "\"" + dots})
    CHECK((parse_value(text) == ConfigValue(text)));
  CHECK((parse_value("{" + times("a.", deep) + "a = 1}") ==
         ConfigValue("{" + times("a.", deep) + "a = 1}")));

  // Any text, even one with a byte-order mark, can be read back after it is written. Non-ASCII
  // letters outside a string are an error.
  const std::string mark = "a\xEF\xBB\xBF\"\xC3\xA9";
  CHECK((parse_value(toml_text(mark)) == ConfigValue(mark)));
  CHECK_THAT(problem("[t]\n\xC3\xA9 = 1\n"), ContainsSubstring("c.toml:2:1"));

  // An unknown key gives an error without delay, however long the key is.
  RunConfig config;
  CHECK_THAT(error_of([&] {
               RunConfig::schema("gpt").set(&config, "train." + times("x", 1'000'000), int64_t{1},
                                            "c.toml:1:1");
             }),
             ContainsSubstring("c.toml:1:1: ") && ContainsSubstring("no key train.xxx"));
}

TEST_CASE("JSON is read in time proportional to its length", "[bad_input]") {
  const std::clock_t begin = std::clock();  // CPU time, which other programs do not affect
  std::string text = "{", objects = "{";
  for (int i = 0; i < 200'000; ++i) {
    text += str("\"key", i, "\": ", i, ", ");
    objects += str("\"key", i, "\": {\"a\": [1]}, ");
  }
  const Json json = parse_json(text + "\"end\": 1}", "j", Exit::data);
  CHECK(json.size() == 200'001);
  CHECK(json.begin().key() == "key0");
  CHECK(parse_json(objects + "\"end\": 1}", "j", Exit::data).size() == 200'001);
  CHECK_THAT(
      error_of([&] { parse_json(text + "\"key0\": 1}", "j", Exit::data); }),
      ContainsSubstring("j: ") && ContainsSubstring("\"key0\"") && ContainsSubstring("twice"));

  const TempFolder f;
  const std::byte one{7};
  std::vector<TensorEntry> tensors;
  for (int i = 0; i < 50'000; ++i)
    tensors.push_back({"tensor" + std::to_string(i), "U8", {1}, {&one, 1}});
  write_safetensors(f / "many.safetensors", tensors);
  CHECK(SafetensorsFile(f / "many.safetensors").tensors().size() == 50'000);
  // Quadratic time would take minutes here.
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 20);
}

TEST_CASE("JSON that is incomplete, too deep or too long is refused", "[bad_input]") {
  const auto problem = [](const std::string& text) {
    return error_of([&] { parse_json(text, "j", Exit::checkpoint); });
  };
  CHECK(problem("[[[[[[[[1]]]]]]]]") == "");
  CHECK_THAT(problem("[[[[[[[[[1]]]]]]]]]"),
             ContainsSubstring("j: ") && ContainsSubstring("8 levels"));
  for (const std::string& text :
       {std::string("{\"a\": 1}\0{}", 11), std::string("{\"a\": 1}\0", 9)})
    CHECK_THAT(problem(text), ContainsSubstring("j: byte 8 ") && ContainsSubstring("NUL"));
  for (const char* text :
       {"", "{", "{} {}", "{\"a\"}", "[1,]", "1e999", "\"\xFF\"", "{\"a\": 1, \"\\u0061\": 2}"})
    CHECK_THAT(problem(text), ContainsSubstring("j: "));
  std::string zeros = "[0";
  for (int i = 0; i < 10'000'000; ++i) zeros += ",0";
  CHECK_THAT(problem(zeros + "]"),
             ContainsSubstring("j: ") && ContainsSubstring("10000000 values"));
}

TEST_CASE("a safetensors header is refused if one of its parts has the wrong type", "[bad_input]") {
  const TempFolder f;
  const auto problem = [&](const std::string& header) {
    const uint64_t length = header.size();
    write_file(f / "x.safetensors",
               std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
                   std::string(8, 'x'));
    return error_of([&] { SafetensorsFile(f / "x.safetensors"); });
  };
  CHECK(problem(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})") == "");
  CHECK_THAT(problem(R"({"a": {"dtype": "U8", "shape": 8, "data_offsets": [0, 8]}})"),
             ContainsSubstring("tensor \"a\"") && ContainsSubstring("list"));
  CHECK_THAT(problem(R"({"a": {"dtype": "U8", "shape": {"b": 8}, "data_offsets": [0, 8]}})"),
             ContainsSubstring("tensor \"a\"") && ContainsSubstring("list"));
  CHECK_THAT(
      problem(
          R"({"__metadata__": "m", "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})"),
      ContainsSubstring("__metadata__"));
  CHECK_THAT(problem(R"({"a": 3})"),
             ContainsSubstring("tensor \"a\"") && ContainsSubstring("\"dtype\""));
}

TEST_CASE("sums and products of config values do not overflow", "[bad_input]") {
  ScheduleConfig schedule;
  for (const char* kind : {"constant", "linear", "cosine", "wsd"}) {
    schedule.kind = kind;
    schedule.warmup_steps = most;
    for (const int64_t step : {int64_t{0}, int64_t{1000}, most}) {
      const double lr = learning_rate(schedule, 1e-3, step, most);
      CHECK(lr >= 0);
      CHECK(lr <= 1e-3);
    }
  }
  const TempFolder f;
  write_file(f / "c.toml", "[train]\nsteps = 4611686018427387904\n");
  CHECK_THAT(error_of([&] { load_config((f / "c.toml").string(), {}); }),
             ContainsSubstring("c.toml:2:1: train.steps = 4611686018427387904") &&
                 ContainsSubstring("train.grad_accum = 1") &&
                 ContainsSubstring("train.batch_size = 12") &&
                 ContainsSubstring("model.block_size = 64"));
  CHECK(error_of([&] { load_config((f / "c.toml").string(), {{"train.steps", "1000000000"}}); }) ==
        "");

  std::string ids;
  for (int i = 0; i < 100; ++i) ids += {static_cast<char>(i), '\0'};
  write_file(f / "val.bin", ids);
  const TokenData tokens(f.path());
  for (const int64_t batches : {int64_t{0}, int64_t{200'000'000'000'000'000}, most}) {
    const auto windows = tokens.evaluation({12, 16, 1000}, batches, at::kCPU);
    int64_t scored = 0;
    for (Batch b; windows->next(b);) scored += b.targets.numel();
    CHECK(scored == 99);
  }
}

TEST_CASE(
    "if a loader worker can't be started, the error names data.workers and a limit, and the "
    "started workers are stopped",
    "[bad_input]") {
  const TempFolder f;
  write_file(f / "train.bin", std::string(4000, '\1'));
  const TokenData tokens(f.path());
  DataConfig config;
  config.workers = 64;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit tight = before;
  // This limit is enough for the stacks of only some of the workers.
  tight.rlim_cur = pages * 4096 + (size_t{100} << 20);
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  const std::string refusal =
      error_of([&] { Loader(tokens, {3, 8, 1000}, 7, 0, config, at::kCPU); });
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK_THAT(refusal, ContainsSubstring("data.workers = 64") && ContainsSubstring("ulimit -u"));
}

TEST_CASE(
    "a run with closed standard streams damages no file, and a command fails if its output is lost",
    "[bad_input]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string lathe = (binary_folder() / "lathe").string();
  const auto sh = [&](const std::string& line) {
    return run({"/bin/sh", {"-c", line}, f.path(), {}});
  };
  for (const char* closed : {">&- 2>&-", "<&- >&- 2>&-", "<&-", "2>&-"}) {
    INFO(closed);
    fs::remove_all(f / "runs");
    CHECK(sh(lathe + " train tiny.toml --train.steps=4 " + closed).code == 0);
    CHECK(slurp(f / "runs/tiny/lock").empty());
    CHECK(run({"lathe", {"verify", "runs/tiny"}, f.path(), {}}).code == 0);
    CHECK_THAT(slurp(f / "runs/tiny/config.toml"), ContainsSubstring("\n[model]\n"));
    CHECK_THAT(slurp(f / "runs/tiny/metrics.jsonl"), Catch::StartsWith("{"));
    CHECK_THAT(slurp(f / "runs/tiny/log.txt"), ContainsSubstring("finished  4 steps"));
    CHECK(sh(lathe + " train tiny.toml --train.steps=x " + closed).code == 2);
  }

  // A command that prints a result fails if standard output is closed.
  for (const char* command : {"plan tiny.toml", "eval runs/tiny", "inspect runs/tiny", "runs runs",
                              "generate runs/tiny --tokens 2", "config show tiny.toml"}) {
    INFO(command);
    CHECK(sh(lathe + " " + command).code == 0);
    const Finished lost = sh(lathe + " " + command + " >&-");
    CHECK(lost.code == static_cast<int>(Exit::io));
    CHECK_THAT(lost.err, ContainsSubstring("standard output"));
  }
}

}  // namespace
