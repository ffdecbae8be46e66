// Tests the declarations of keys, and bad values of every key in the file, on the command line and
// in the environment.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <variant>

#include "core/io/json.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/config/run_config.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::string problem(const std::string& toml) {
  const TempFolder f;
  write_file(f / "c.toml", toml);
  std::string text = error_of([&] { load_config((f / "c.toml").string(), {}); });
  const std::string folder = f.path().string() + "/";
  for (size_t at = 0; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
  return text;
}
std::string section(const Field& f) { return f.key.substr(0, f.key.find('.')); }
std::string name(const Field& f) { return f.key.substr(f.key.find('.') + 1); }

TEST_CASE(
    "every key refuses a wrong type, a value out of range, a misspelling, a repeat and a wrong "
    "section",
    "[config]") {
  // These are the names of the types, in the order of ConfigValue's alternatives.
  constexpr const char* types[]{"true or false", "whole number", "number", "string", "tables"};
  for (const auto& f : RunConfig::schema("gpt").fields()) {
    INFO(f.key);
    const bool text = std::holds_alternative<std::string>(f.initial),
               flag = std::holds_alternative<bool>(f.initial);
    const std::string head = "[" + section(f) + "]\n", value = toml_text(f.initial);

    // Values of another type are refused.
    CHECK_THAT(problem(head + name(f) + (text ? " = 3\n" : " = \"x\"\n")),
               ContainsSubstring("c.toml:2:1: " + f.key + " ") &&
                   ContainsSubstring(types[f.initial.index()]));
    CHECK_THAT(problem(head + name(f) + " = [1]\n"), ContainsSubstring("c.toml:2:1"));
    if (std::holds_alternative<int64_t>(f.initial))
      CHECK_THAT(problem(head + name(f) + " = 1.5\n"),
                 ContainsSubstring(f.key) && ContainsSubstring("whole number"));

    // Values that the rule of the key excludes are refused, and the error states the rule.
    const auto refused = [&](const std::string& wrong, const std::string& allowed) {
      CHECK_THAT(problem(head + name(f) + " = " + wrong + "\n"),
                 ContainsSubstring(f.key + " = " + wrong + " ") && ContainsSubstring(allowed));
    };
    if (!text && !flag) {
      if (std::isfinite(f.rule.min)) refused("-1000000000", rule_text(f.rule));
      if (std::isfinite(f.rule.max)) refused("1000000000", rule_text(f.rule));
      if (std::holds_alternative<double>(f.initial)) refused("nan", rule_text(f.rule));
    }
    if (!f.rule.choices.empty()) refused("\"nonsense\"", f.rule.choices[0]);

    // Misspelled and repeated keys, and keys outside their section, are refused.
    CHECK_THAT(problem(head + name(f) + "x = 1\n"),
               ContainsSubstring(f.key + "x") && ContainsSubstring("mean " + section(f) + "."));
    CHECK_THAT(problem(head + name(f) + " = " + value + "\n" + name(f) + " = " + value + "\n"),
               ContainsSubstring("c.toml:3:"));
    CHECK_THAT(
        problem(name(f) + " = " + value + "\n"),
        ContainsSubstring("c.toml:1:1: \"" + name(f) + "\"") && ContainsSubstring("[train]"));
    const std::string other = section(f) == "model" ? "train" : "model";
    if (RunConfig::schema("gpt").find(other + "." + name(f)) == nullptr) {
      CHECK_THAT(
          problem("[" + other + "]\n" + name(f) + " = " + value + "\n"),
          ContainsSubstring("no key " + other + "." + name(f)) && ContainsSubstring("mean "));
    }

    // The default is accepted.
    CHECK(problem(head + name(f) + " = " + value + "\n") == "");
  }
}

TEST_CASE("keys that contradict each other are refused", "[config]") {
  CHECK_THAT(problem("[model]\nn_embd = 10\nn_head = 3\n"),
             ContainsSubstring("c.toml:3:1: model.n_embd = 10") && ContainsSubstring("divisible") &&
                 ContainsSubstring("model.n_head = 3"));
  CHECK_THAT(
      problem("[optim]\nnesterov = true\ndampening = 0.5\n"),
      ContainsSubstring("c.toml:2:1: optim.nesterov") && ContainsSubstring("optim.dampening = 0"));
  CHECK_THAT(problem("[data]\nwindow = 65\n"), ContainsSubstring("c.toml:2:1: data.window = 65") &&
                                                   ContainsSubstring("model.block_size = 64"));
  CHECK(problem("[data]\nwindow = 65\n[model]\nblock_size = 60\n").starts_with("c.toml:4:1: "));
  CHECK_THAT(
      problem("[data]\nwindow = 8\n[model]\nkind = \"mlp\"\n"),
      ContainsSubstring("c.toml:2:1: data.window") && ContainsSubstring("model.kind = \"mlp\""));
  CHECK(problem("[data]\nwindow = 64\n") == "");

  CHECK(problem("[optim]\nlr = 5e-5\n") == "");
  CHECK_THAT(problem("[optim]\nlr = 1e-5\n[schedule]\nmin_lr = 1e-4\n"),
             ContainsSubstring("c.toml:4:1: schedule.min_lr = 0.0001") &&
                 ContainsSubstring("optim.lr = 1e-05"));
  CHECK_THAT(problem("[schedule]\nmin_lr = -0.5\n"),
             ContainsSubstring("c.toml:2:1: schedule.min_lr = -0.5") && ContainsSubstring(">= 0"));
}

/// Keys of a section that contradict each other, and the facts that their error must contain.
struct Contradiction {
  std::string keys;
  std::vector<std::string> facts;
};
void check_contradictions(const std::string& section, const std::vector<Contradiction>& all) {
  for (const auto& [keys, facts] : all) {
    INFO(keys);
    const std::string error = problem("[" + section + "]\n" + keys + "\n");
    for (const std::string& fact : facts) CHECK_THAT(error, ContainsSubstring(fact));
  }
}

TEST_CASE("keys of amp that contradict each other are refused", "[config]") {
  check_contradictions(
      "amp",
      {{"grad = \"low\"", {"c.toml:2:1: amp.grad = \"low\"", "amp.dtype"}},
       {"scaler = \"dynamic\"\ndtype = \"bf16\"",
        {"c.toml:2:1: amp.scaler = \"dynamic\"", "amp.dtype = \"fp16\"", "bf16", "float32"}},
       {"scaler = \"fixed\"\ndtype = \"fp8\"", {"amp.scaler = \"fixed\"", "fp8", "tensor"}}});

  // These cases concern the loss scale.
  check_contradictions(
      "amp",
      {{"loss_scale = 0\ndtype = \"fp16\"", {"c.toml:2:1: amp.loss_scale = 0", ">= 1e-06"}},
       {"loss_scale = 8\ndtype = \"bf16\"", {"c.toml:2:1: amp.loss_scale", "amp.dtype = \"bf16\""}},
       {"loss_scale = 8\ndtype = \"fp16\"\nscaler = \"none\"",
        {"c.toml:2:1: amp.loss_scale", "amp.scaler = \"none\""}},
       {"growth_interval = 8\ndtype = \"fp16\"\nscaler = \"fixed\"",
        {"amp.growth_interval", "amp.scaler = \"dynamic\""}},
       {"min_loss_scale = 8\nloss_scale = 4\ndtype = \"fp16\"",
        {"amp.min_loss_scale = 8", "amp.loss_scale = 4"}}});

  // These cases concern parameters and their copies.
  check_contradictions(
      "amp",
      {{"master = false", {"c.toml:2:1: amp.master = false", "amp.dtype"}},
       {"working_copies = false", {"c.toml:2:1: amp.working_copies", "fp32"}},
       {"working_copies = false\ndtype = \"bf16\"\nmaster = false",
        {"amp.working_copies", "amp.master = false"}},
       {"cache = false\ndtype = \"bf16\"", {"c.toml:2:1: amp.cache", "amp.working_copies = true"}},
       {"rounding = \"nearest\"\ndtype = \"bf16\"", {"amp.rounding", "amp.master = true"}},
       {"rounding = \"stochastic\"\ndtype = \"fp16\"\nmaster = false",
        {"amp.rounding = \"stochastic\"", "amp.dtype = \"bf16\""}}});

  // These cases concern fp8, and the sizes that fp8 matmuls need.
  check_contradictions("amp",
                       {{"fp8_scaling = \"delayed\"", {"amp.fp8_scaling", "amp.dtype = \"fp8\""}},
                        {"dtype = \"fp8\"\nfp8_history = 4",
                         {"c.toml:3:1: amp.fp8_history", "amp.fp8_scaling = \"delayed\""}},
                        {"dtype = \"fp8\"\nfp8_edge_blocks = 2",
                         {"c.toml:3:1: amp.fp8_edge_blocks = 2", "model.n_layer"}},
                        {"dtype = \"fp8\"\n[model]\nn_embd = 120",
                         {"c.toml:4:1: model.n_embd = 120", "16", "amp.dtype"}},
                        {"dtype = \"fp8\"\n[train]\nbatch_size = 3\n[model]\nblock_size = 24",
                         {"c.toml:4:1: train.batch_size = 3", "model.block_size = 24", "16"}}});
}

TEST_CASE("keys of adapters that contradict each other are refused", "[config]") {
  check_contradictions(
      "adapters", {{"rank = 4", {"c.toml:2:1: adapters.rank", "adapters.base"}},
                   {"dtype = \"nf4\"", {"c.toml:2:1: adapters.dtype", "adapters.rank = 0"}},
                   {"rank = 4\nbase = \"x\"\ndtype = \"nf4\"",
                    {"c.toml:4:1: adapters.dtype = \"nf4\"", "amp.dtype = \"bf16\"", "\"fp16\""}},
                   {"rank = 4\nbase = \"x\"\ndtype = \"bf16\"\n[amp]\ndtype = \"fp16\"",
                    {"adapters.dtype = \"bf16\"", "amp.dtype = \"bf16\"", "\"fp16\""}},
                   {"rank = 4\nbase = \"x\"\n[amp]\ndtype = \"bf16\"",
                    {"adapters.dtype = \"fp32\"", "amp.dtype = \"fp32\""}},
                   {"rank = 4\nbase = \"x\"\ndouble_quant = true",
                    {"adapters.double_quant", "adapters.dtype = \"nf4\""}},
                   {"rank = 4\nbase = \"x\"\n[amp]\ndtype = \"fp8\"",
                    {"amp.dtype = \"fp8\"", "adapters", "\"bf16\""}},
                   {"rank = 4\nbase = \"x\"\n[model]\nkind = \"rnn\"",
                    {"c.toml:5:1: adapters.rank = 4", "model.kind = \"rnn\""}},
                   {"rank = 4\nbase = \"x\"\n[model]\nkind = \"rnn\"\ntie_weights = true",
                    {"adapters.rank = 4", "model.kind = \"rnn\""}}});

  // Adapters are accepted for these kinds, which have at least one linear layer that can have an
  // adapter.
  for (const char* kind :
       {"gpt", "gpt\"\ntie_weights = false\ninit = \"gpt2", "llama", "mlp", "convnet"})
    CHECK(problem(str("[adapters]\nrank = 4\nbase = \"x\"\n[model]\nkind = \"", kind, "\"\n")) ==
          "");
}

TEST_CASE("an unknown key without a section is refused like any other", "[config]") {
  const Schema& keys = RunConfig().model.own.schema();  // config keys of a model, such as "n_layer"
  std::vector<std::byte> memory(4096);
  for (const char* key : {"n_layers", "x", "model.n_layer", ""}) {
    INFO(key);
    CHECK_THAT(error_of([&] { keys.set(memory.data(), key, int64_t{1}, "here"); }),
               ContainsSubstring("here: ") && ContainsSubstring(std::string("no key ") + key));
  }
}

TEST_CASE("all wrong keys of a config are reported together", "[config]") {
  const std::string all =
      problem("[optim]\nlr = \"x\"\nlrr = 1\n[train]\nsteps = 0\nbatch_size = 2\n");
  CHECK_THAT(all, ContainsSubstring("c.toml:2:1: optim.lr ") &&
                      ContainsSubstring("\nc.toml:3:1:") && ContainsSubstring("optim.lrr") &&
                      ContainsSubstring("\nc.toml:5:1: train.steps = 0"));
  CHECK(std::count(all.begin(), all.end(), '\n') == 2);
}

TEST_CASE("files that are not a config are refused", "[config]") {
  CHECK_THAT(problem("[model\n"), ContainsSubstring("c.toml:1:"));
  CHECK_THAT(problem("[="), ContainsSubstring("c.toml"));
  CHECK_THAT(problem(std::string("[train]\nsteps = 1\0\n", 19)),
             ContainsSubstring("c.toml:2:1:") && ContainsSubstring("control"));
  CHECK_THAT(problem(std::string((1 << 20) + 1, '#')),
             ContainsSubstring("c.toml") && ContainsSubstring("1048576"));
  CHECK_THAT(error_of([] { load_config("/nowhere/c.toml", {}); }),
             ContainsSubstring("no config file /nowhere/c.toml"));
}

TEST_CASE("schedule.min_lr is a tenth of optim.lr unless it is given", "[config]") {
  const TempFolder f;
  write_file(f / "c.toml", "");
  const auto min_lr = [&](const std::vector<std::pair<std::string, std::string>>& overrides) {
    return load_config((f / "c.toml").string(), overrides).config.schedule.min_lr;
  };
  CHECK(min_lr({}) == 1e-4);  // a tenth of the default optim.lr
  CHECK(min_lr({{"optim.lr", "5e-5"}}) == 5e-5 / 10);
  CHECK(min_lr({{"optim.lr", "5e-5"}, {"schedule.min_lr", "-1"}}) == 5e-5 / 10);
  CHECK(min_lr({{"optim.lr", "5e-5"}, {"schedule.min_lr", "0"}}) == 0);
  CHECK(config_from_toml("[optim]\nlr = 5e-4\n[schedule]\nmin_lr = 0.0001\n", "an older run")
            .schedule.min_lr == 1e-4);
  const ScheduleConfig untouched;  // not set by load_config()
  ScheduleConfig given;
  given.min_lr = 1e-4;
  for (int64_t step : {150, 1999})
    CHECK(learning_rate(untouched, 1e-3, step, 2000) == learning_rate(given, 1e-3, step, 2000));
}

TEST_CASE("numbers are read in any common notation if the value is exact", "[config]") {
  const TempFolder f;
  write_file(f / "c.toml", "");
  const auto load = [&](const std::string& key, const std::string& text) {
    return load_config((f / "c.toml").string(), {{key, text}, {"schedule.min_lr", "0"}}).config;
  };

  const std::vector<std::pair<const char*, int64_t>> whole{
      {"1000", 1000},
      {"1e3", 1000},
      {"1.5E1", 15},
      {"1_000", 1000},
      {"+3", 3},
      {"5.", 5},
      {"120e-1", 12},
      {"0x10", 16},
      {"9007199254740993", 9007199254740993},
      {"9.007199254740993e15", 9007199254740993}};
  for (const auto& [text, wanted] : whole) {
    INFO(text);
    CHECK(error_of([&] { CHECK(load("train.seed", text).train.seed == wanted); }) == "");
  }
  CHECK(load("train.seed", "0e5").train.seed == 0);

  const std::vector<std::pair<const char*, double>> real{
      {".001", 0.001}, {"5.", 5}, {"1_000.5", 1000.5}, {"+3", 3},
      {"1e-3", 1e-3},  {"3", 3},  {"1_0e1_0", 1e11}};
  for (const auto& [text, wanted] : real) {
    INFO(text);
    CHECK(error_of([&] { CHECK(load("optim.lr", text).optim.lr == wanted); }) == "");
  }

  for (const char* text :
       {"1.5e0", "1e-1", "1.5e-9223372036854775808", "1e9223372036854775807", "1__0", "_1", "1_",
        "e3", ".", "", "+", "1e", "--3", "1 0", "0x", "inf"}) {
    INFO(text);
    CHECK_THAT(
        error_of([&] { load("train.steps", text); }),
        ContainsSubstring(std::string("command line: --train.steps=") + text + ": train.steps ") &&
            ContainsSubstring("whole number"));
  }
  for (const char* text : {"1__0", "._5", "e3", ".", "", "1e", "1e_3", "1e999", "nan", "one"}) {
    INFO(text);
    CHECK_THAT(error_of([&] { load("optim.lr", text); }), ContainsSubstring("optim.lr"));
  }

  setenv("LATHE_TRAIN_STEPS", "2e3", 1);
  CHECK(load("optim.lr", "1").train.steps == 2000);
  unsetenv("LATHE_TRAIN_STEPS");
}

TEST_CASE(
    "the command line overrides the environment, the environment the file, the file the defaults",
    "[config]") {
  const TempFolder f;
  write_file(f / "c.toml", "[train]\nsteps = 11\nbatch_size = 12\nseed = 13\n");
  setenv("LATHE_TRAIN_BATCH_SIZE", "22", 1);
  setenv("LATHE_TRAIN_SEED", "23", 1);

  const LoadedConfig c =
      load_config((f / "c.toml").string(),
                  {{"train.seed", "33"}, {"data.dir", "123"}, {"model.kind", "\"llama\""}});
  CHECK(c.config.model.kind == "llama");  // text may also be within quotes

  CHECK_THAT(error_of([&] {
               setenv("LATHE_TRAIN_STESP", "1", 1);
               load_config((f / "c.toml").string(), {});
             }),
             ContainsSubstring("LATHE_TRAIN_STESP") && ContainsSubstring("LATHE_TRAIN_STEPS"));
  for (const char* name : {"LATHE_TRAIN_BATCH_SIZE", "LATHE_TRAIN_SEED", "LATHE_TRAIN_STESP"})
    unsetenv(name);

  CHECK(c.config.train.log_interval == 10);
  CHECK(c.config.train.steps == 11);
  CHECK(c.config.train.batch_size == 22);
  CHECK(c.config.train.seed == 33);
  CHECK(c.config.data.dir == "123");  // a string key keeps its text unchanged
  CHECK(c.origins.at("train.steps").ends_with("c.toml:2:1"));
  CHECK(c.origins.at("train.seed") == "command line");
  CHECK(c.config.train.out_dir == "runs/c");
}

TEST_CASE("a resolved config that is saved and read again is unchanged", "[config]") {
  RunConfig c;
  c.optim.lr = 0.1 + 0.2;
  c.data.dir = "a \"quoted\" \\ path";
  *c.model.own.find<bool>("bias") = false;
  const std::string text = RunConfig::schema("gpt").to_toml(&c, /*comments=*/true);
  const RunConfig back = config_from_toml(text, "text");
  CHECK(RunConfig::schema("gpt").to_toml(&back, true) == text);
  CHECK(back.optim.lr == c.optim.lr);
}

TEST_CASE("the configs in configs/ load, and the reference pages match the declarations",
          "[config]") {
  for (const auto& entry : fs::directory_iterator(test::source_folder() / "configs")) {
    INFO(entry.path());
    CHECK(error_of([&] { load_config(entry.path().string(), {}); }) == "");
  }
  const Finished f = run({.binary = "lathe",
                          .args = {"config", "docs"},
                          .folder = fs::temp_directory_path(),
                          .environment = {}});
  CHECK(f.out == slurp(test::source_folder() / "docs/reference/config.md"));
  const Finished cli = run({.binary = "lathe",
                            .args = {"config", "docs", "cli"},
                            .folder = fs::temp_directory_path(),
                            .environment = {}});
  CHECK(cli.out == slurp(test::source_folder() / "docs/reference/cli.md"));
  CHECK(run({.binary = "lathe",
             .args = {"config", "docs", "elsewhere"},
             .folder = fs::temp_directory_path(),
             .environment = {}})
            .code == 2);
}

TEST_CASE("docs/reference/exit-codes.md has every exit code of the help", "[config]") {
  const std::string page = slurp(test::source_folder() / "docs/reference/exit-codes.md");
  const std::string help = run({.binary = "lathe",
                                .args = {"--help"},
                                .folder = fs::temp_directory_path(),
                                .environment = {}})
                               .out;
  const size_t begin = help.find("Exit codes:");
  REQUIRE(begin != std::string::npos);

  int codes = 0;
  const std::string list = help.substr(begin);
  const std::regex number("[0-9]+");
  for (std::sregex_iterator i(list.begin(), list.end(), number), end; i != end; ++i, ++codes)
    CHECK_THAT(page, ContainsSubstring("\n| " + i->str() + " | `"));
  CHECK(codes == 12);
}

TEST_CASE("the reference pages name every field and file that a run writes", "[config]") {
  const TempFolder f;
  write_file(f / "text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "text", "--tokenizer", "char"}).code == 0);
  write_file(f / "c.toml",
             "[train]\nsteps = 2\nlog_interval = 1\nbatch_size = 1\nsample_interval = 1\n");
  REQUIRE(lathe_in(f, {"train", "c.toml", "--data.dir=text", "--train.out_dir=run",
                       "--model.n_layer=1", "--model.n_embd=8", "--amp.dtype=fp16",
                       "--train.spike_sigma=9", "--log.layers=1", "--log.csv=true"})
              .code == 0);

  const auto check_names = [&](const std::string& page, const Json& object) {
    for (const auto& [name, value] : object.items())
      CHECK_THAT(page, ContainsSubstring("`" + name + "`"));
  };
  const fs::path checkpoint = f / "run/checkpoints/step-00000002";
  const std::string format = slurp(test::source_folder() / "docs/reference/checkpoint-format.md");
  check_names(format, Json::parse(slurp(checkpoint / "state.json")));
  check_names(format, Json::parse(slurp(checkpoint / "manifest.json"))["files"]);

  const std::string page = slurp(test::source_folder() / "docs/reference/run-folder.md");
  for (const auto& entry : fs::directory_iterator(f / "run"))
    CHECK_THAT(page, ContainsSubstring("`" + entry.path().filename().string()));
  for (const char* name : {"metrics.jsonl", "events.jsonl"}) {
    std::istringstream lines(slurp(f / "run" / name));
    for (std::string line; std::getline(lines, line);) check_names(page, Json::parse(line));
  }
}

TEST_CASE("malformed TOML is parsed or throws an Error, and never crashes", "[config]") {
  const std::string good =
      "[model]\nn_layer = 2\n[train]\nsteps = 5\nout_dir = \"a\\u0041\"\nmax_time = 1.5e3\n";
  const std::string marks = "[]=\"'\n#{}.,\\ueE+-0truefals\xEF\xBB\xBF\x7f";
  uint32_t x = 1;
  const auto next = [&x](size_t n) { return (x = x * 1664525u + 1013904223u) / 65536 % n; };
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (size_t edits = 1 + next(4); edits > 0; --edits) {
      const size_t at = next(text.size());
      if (next(3) == 0)
        text.erase(at, 1 + next(6));
      else
        text.insert(at, 1, marks[next(marks.size())]);
      if (text.empty()) break;
    }
    try {
      parse_toml(text, "fuzz");
    } catch (const Error&) {
    }
  }
  SUCCEED("20000 inputs");
}

/// Returns a value that is not the field's default.
std::string other_value(const Field& field) {
  if (const auto* flag = std::get_if<bool>(&field.initial)) return *flag ? "false" : "true";
  if (const auto* text = std::get_if<std::string>(&field.initial)) {
    for (const std::string& choice : field.rule.choices) {
      if (choice != *text) return choice;
    }
  }
  if (const auto* whole = std::get_if<int64_t>(&field.initial)) return std::to_string(*whole + 1);
  // The value stays between 0 and 1 if the default is below 1.
  const double number = std::get<double>(field.initial);
  return str(number < 1 ? (number + 1) / 2 : number + 1);
}

TEST_CASE("a key that has no effect with the chosen kind gives a warning", "[config]") {
  const TempFolder f;
  write_file(f / "a.toml", "[data]\ndir = \"x\"\n");
  std::set<std::string> seen;

  for (const auto& model : model_kinds()) {
    const auto load = [&](std::map<std::string, std::string> keys) {
      keys.insert({{"model.kind", model.name}, {"train.steps", "1000"}});
      return load_config((f / "a.toml").string(), {keys.begin(), keys.end()}).config;
    };
    const RunConfig plain = load({});
    for (const Field& field : plain.schema().fields()) {
      const std::vector<std::string>& kinds = field.rule.kinds;
      if (kinds.empty() || !seen.insert(field.key).second) continue;
      INFO(field.key);

      // The selector is the key that chooses a kind. Find one of its values with which the tested
      // key has an effect, and one with which it has none.
      const std::string selector =
          field.key.substr(0, field.key.find('.') + 1) + field.rule.selector;
      const Field* chooses = plain.schema().find(selector);
      REQUIRE(chooses != nullptr);
      std::map<bool, std::string> values;
      for (const std::string& value : chooses->rule.choices)
        values.emplace(std::ranges::find(kinds, value) != kinds.end(), value);
      REQUIRE(values.size() == 2);

      for (const auto& [has_effect, value] : values) {
        std::map<std::string, std::string> keys{{field.key, other_value(field)}, {selector, value}};
        if (value == "llama3" || value == "yarn") keys["model.rope_factor"] = "2";
        std::string all;
        for (const std::string& one : config_warnings(load(keys))) all += one + "\n";
        CHECK((all.find(field.key) == std::string::npos) == has_effect);
      }
    }
  }
  CHECK(seen.size() >= 30);
}

TEST_CASE("a key with a list of choices causes no warning about keys that are not given",
          "[config]") {
  const TempFolder f;
  write_file(f / "a.toml", "");
  int loaded = 0;
  for (const Field& field : RunConfig().schema().fields()) {
    for (const std::string& choice : field.rule.choices) {
      INFO(field.key << " = " << choice);
      std::optional<RunConfig> config;
      try {
        if (!field.rule.kinds.empty()) continue;  // the key has an effect only with another key
        config = load_config((f / "a.toml").string(), {{field.key, choice}}).config;
      } catch (const Error&) {
        continue;  // the value needs further keys
      }
      ++loaded;
      CHECK(config_warnings(*config) == std::vector<std::string>{});
    }
  }
  CHECK(loaded > 70);
}

}  // namespace
