#include "train/verbs/verbs.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/memory.h"
#include "data/prepare.h"
#include "train/run/load.h"
#include "train/run/replay.h"
#include "train/run/session.h"
#include "train/run/stop.h"
#include "train/run/trainer.h"
#include "train/store/checkpoint.h"
#include "train/tasks/generate.h"
#include "train/transforms/adapters.h"
#include "train/verbs/bench.h"
#include "train/verbs/inspect.h"
#include "train/verbs/plan.h"
#include "train/verbs/precision.h"

namespace lathe {

double Arguments::number(const std::string& name, double otherwise, const Rule& rule, bool whole) const {
  const auto found = flags.find(name);
  if (found == flags.end()) return otherwise;
  const ConfigValue v = read_value(found->second, whole ? ConfigValue(int64_t{0}) : ConfigValue(0.0));
  double x = 0;
  if (const auto* i = std::get_if<int64_t>(&v))
    x = static_cast<double>(*i);
  else if (const auto* d = std::get_if<double>(&v); d && !whole)
    x = *d;
  else
    fail(Exit::usage, "command line: --", name, " must be a ", whole ? "whole " : "", "number, not ", found->second);
  Rule allowed = rule;
  if (whole) allowed.max = std::min(allowed.max, 0x1p53);  // beyond, not every whole number is a double
  if (!std::isfinite(x) || !(x >= rule.min && x <= allowed.max) || (rule.open_min && x == rule.min)) {
    fail(Exit::usage, "command line: --", name, " = ", found->second, " is not allowed; it must be ",
         rule_text(allowed));
  }
  return x;
}

bool Arguments::is_true(const std::string& name) const {
  const std::string value = get(name, "false");
  if (value != "true" && value != "false")
    fail(Exit::usage, "command line: --", name, " must be true or false, not ", value);
  return value == "true";
}

LoadedConfig load_config_argument(const Arguments& arguments, size_t at) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (const auto& [key, value] : arguments.flags) {
    if (key.find('.') != std::string::npos) overrides.emplace_back(key, value);
  }
  LoadedConfig loaded = load_config(arguments.words.at(at), overrides);
  const std::string& level = loaded.config.log.level;
  set_console_level(level == "debug"  ? Level::debug
                    : level == "info" ? Level::info
                    : level == "warn" ? Level::warn
                                      : Level::error);
  return loaded;
}

namespace {

/// The run or checkpoint that the first word names; Exit::checkpoint with what it is instead.
fs::path run_argument(const Arguments& arguments) {
  const std::string& path = arguments.words.at(0);
  const bool eval = arguments.verb == "eval";
  switch (kind_of(path)) {
    case PathKind::data:
      fail(Exit::checkpoint, path, " is a data folder; lathe ", arguments.verb, " wants a run or a checkpoint",
           eval ? ", and data as --data " + path : "");
    case PathKind::file:
    case PathKind::safetensors:
      fail(Exit::checkpoint, path, " is a file; lathe ", arguments.verb, " wants a run or a checkpoint folder");
    default: return path;
  }
}

LoadedModel load_model_argument(const Arguments& arguments) {
  const std::string device = arguments.get("device", "auto"), dtype = arguments.get("load-dtype", "");
  if (device != "auto" && device != "cpu" && device != "cuda")
    fail(Exit::usage, "command line: --device must be auto, cpu or cuda, not ", device);
  if (!dtype.empty() && dtype != "fp32" && dtype != "bf16" && dtype != "fp16" && dtype != "int8" && dtype != "nf4")
    fail(Exit::usage, "command line: --load-dtype must be fp32, bf16, fp16, int8 or nf4, not ", dtype);
  const bool twice = arguments.is_true("double-quant");
  if (twice && dtype != "nf4") fail(Exit::usage, "command line: --double-quant belongs to --load-dtype nf4");
  const int threads = static_cast<int>(arguments.number("threads", default_threads(), between(1, 4096), true));
  LoadedModel m =
      LoadedModel::open(run_argument(arguments), device, threads, dtype, twice, arguments.get("checkpoint", "newest"));
  // To standard error: what goes to standard output is the result.
  std::cerr << "matmuls in " << dtype_name(matmul_dtype(m.compute.dtype)) << ", matrices kept as " << m.load_dtype
            << ", saved as " << m.saved_dtype << "\n";
  return m;
}

Exit eval_verb(const Arguments& arguments) {
  const LoadedModel m = load_model_argument(arguments);
  const fs::path folder = arguments.get("data", m.config.data.dir);
  const auto manifest = read_manifest(folder);
  const TokenFile val(folder, "val", manifest);
  if (val.size() < 2)
    fail(Exit::data, folder.string(), " has ", val.size(), " validation token; a loss needs at least two");
  check_tokenizer(folder, manifest, m.state);
  const auto batch = static_cast<int64_t>(
      arguments.number("batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
  const EvalResult r =
      *evaluate(m.model, val, {batch, m.config.model.block_size, m.config.model.vocab_size}, 0, m.compute, m.device);
  const int64_t peak = m.device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  std::cout << Json{{"val_loss", json_number(r.loss)},
                    {"tokens", r.tokens},
                    {"save_dtype", m.saved_dtype},
                    {"load_dtype", m.load_dtype},
                    {"compute_dtype", dtype_name(matmul_dtype(m.compute.dtype))},
                    {"weight_bytes", m.weight_bytes},
                    {"loading_peak_bytes", m.loading_peak_bytes},
                    {"peak_bytes", peak},
                    {"peak_rss_bytes", peak_rss_bytes()}}
                   .dump()
            << std::endl;
  return Exit::done;
}

/// A line break where the vocabulary has one, else its first character.
std::string default_prompt(const Tokenizer& tokenizer) {
  const auto& characters = tokenizer.vocabulary();
  const bool has_break =
      characters.empty() || std::find(characters.begin(), characters.end(), "\n") != characters.end();
  return has_break ? "\n" : characters.front();
}

Exit generate_verb(const Arguments& arguments) {
  Sampling s{.temperature = arguments.number("temperature", 0.8, at_least(0), false),
             .top_k = static_cast<int64_t>(arguments.number("top-k", 0, at_least(0), true)),
             .top_p = arguments.number("top-p", 1, {.min = 0, .max = 1, .open_min = true}, false),
             .seed = static_cast<uint64_t>(arguments.number("seed", 1, at_least(0), true))};
  const auto n = static_cast<int64_t>(arguments.number("tokens", 300, between(1, 1e9), true));
  const LoadedModel m = load_model_argument(arguments);
  if (!m.state.tokenizer) {
    fail(Exit::data, arguments.words[0],
         " was trained on data without a manifest.json, so there is no tokenizer to read or write text with");
  }
  const std::string prompt = arguments.get("prompt", default_prompt(*m.state.tokenizer));
  const auto ids = m.state.tokenizer->encode(prompt, Exit::usage);
  if (ids.empty()) fail(Exit::usage, "command line: --prompt is empty; give at least one character");
  std::cout << prompt << std::flush;
  generate(m.model, ids, n, s, m.compute,
           [&](int64_t id) { return bool(std::cout << m.state.tokenizer->decode({id}) << std::flush); });
  std::cout << std::endl;
  return Exit::done;
}

Exit merge_verb(const Arguments& arguments) {
  const fs::path out = arguments.get("out", "");
  if (out.empty()) fail(Exit::usage, "lathe merge needs --out FOLDER");
  log_info("merged into ", merge(run_argument(arguments), out).string());
  return Exit::done;
}

Exit gradients_verb(const Arguments& arguments) {
  const auto batches = static_cast<int64_t>(arguments.number("batches", 8, between(1, 100000), true));
  const LoadedModel m = load_model_argument(arguments);
  if (m.config.model.lora > 0) fail(Exit::usage, arguments.words[0], " has adapters; merge them first (`lathe merge`)");
  const GradientExponents e = gradient_exponents(m, batches);
  std::cout << exponents_text(e) << std::flush;
  if (arguments.flags.contains("svg")) write_file_durably(arguments.get("svg", ""), exponents_svg(e));
  return Exit::done;
}

Exit train_verb(const Arguments& arguments) {
  const bool verify_data = arguments.is_true("verify-data");
  return train(load_config_argument(arguments), verify_data);
}

Exit prepare_verb(const Arguments& arguments) {
  PrepareOptions o{.inputs = arguments.words, .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe prepare needs --out FOLDER");
  o.tokenizer = arguments.get("tokenizer", "byte");
  if (o.tokenizer != "byte" && o.tokenizer != "char")
    fail(Exit::usage, "command line: --tokenizer must be byte or char, not ", o.tokenizer);
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  o.shard_tokens = static_cast<int64_t>(arguments.number("shard-tokens", 1e8, at_least(1), true));
  take_stop_signals("the preparation; nothing of it is kept");
  o.stop = [] { return stop_signal() != 0; };
  prepare(o);
  return Exit::done;
}

Exit config_verb(const Arguments& arguments) {
  const std::string& what = arguments.words[0];
  if (what == "kernels") {
    if (arguments.words.size() != 1 || !arguments.flags.empty())
      fail(Exit::usage, "lathe config kernels stands alone: it tells what this machine can run");
    std::cout << kernels_text();
    return Exit::done;
  }
  if (what == "docs") {
    std::cout << "# Configuration\n\nGenerated by `lathe config docs`. A config is a TOML file; the command line "
                 "(`--train.steps=100`) "
                 "overrides the environment (`LATHE_TRAIN_STEPS=100`), which overrides the file, which overrides the "
                 "default. "
                 "A *fixed* key can't change when a run is resumed; a *free* one can, and the change is logged.\n"
              << run_schema().to_markdown();
    return Exit::done;
  }
  if (what != "show" && what != "check")
    fail(Exit::usage, "lathe config ", what,
         ": there are `config show CONFIG`, `config check CONFIG`, `config docs` and `config kernels`");
  if (arguments.words.size() != 2) fail(Exit::usage, "lathe config ", what, " needs a config file");
  const LoadedConfig loaded = load_config_argument(arguments, 1);
  if (what == "show")
    std::cout << run_schema().to_toml(&loaded.config, /*comments=*/true);
  else
    std::cout << arguments.words[1] << ": fine\n";
  return Exit::done;
}

using Flags = std::vector<std::pair<const char*, const char*>>;

/// A verb's own flags and those that load_model_argument reads.
Flags and_loading(Flags flags) {
  flags.insert(flags.end(), {{"checkpoint", "of a run: newest, best, or a name such as step-00001000 (newest)"},
                             {"load-dtype",
                              "how weights are kept: fp32, bf16, fp16, int8 or nf4 (fp32; adapters: model.lora_dtype)"},
                             {"double-quant", "true: nf4's scales in 8 bits too (false)"},
                             {"device", "auto, cpu or cuda"},
                             {"threads", "CPU threads"}});
  return flags;
}

}  // namespace

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all{
      {"train",
       "CONFIG [--section.key=value ...]",
       "train, or go on with, the run that a config describes",
       "train configs/quickstart.toml --train.steps=500 --train.out_dir=runs/short",
       {{"verify-data", "true: read all training and validation data and compare it with its checksums first (false)"}},
       true,
       1,
       1,
       train_verb},
      {"plan",
       "CONFIG [--section.key=value ...]",
       "what a run will need: memory, FLOPs, time, disk",
       "plan configs/gpt2_124m.toml --train.batch_size=4",
       {},
       true,
       1,
       1,
       [](const Arguments& a) {
         std::cout << plan(load_config_argument(a)) << std::flush;
         return Exit::done;
       }},
      {"prepare",
       "IN... --out FOLDER",
       "turn text files, or folders of them, into token shards",
       "prepare my.txt --out data/my --tokenizer char",
       {{"out", "folder for the shards"},
        {"tokenizer", "byte (default) or char"},
        {"val", "share of the text for validation, from its tail (0.1)"},
        {"shard-tokens", "most tokens in one file (100000000)"}},
       false,
       1,
       1000000,
       prepare_verb},
      {"eval", "RUN|CHECKPOINT", "loss over the validation split; the last line is JSON",
       "eval runs/quickstart --load-dtype bf16",
       and_loading(
           {{"data", "data folder (default: the run's)"}, {"batch-size", "sequences at once (default: the run's)"}}),
       false, 1, 1, eval_verb},
      {"generate", "RUN|CHECKPOINT", "write text", "generate runs/quickstart --prompt \"int \" --tokens 200",
       and_loading(
           {{"prompt", "text to continue (a line break; where there is none, the vocabulary's first character)"},
            {"tokens", "how many to write (300)"},
            {"temperature", "0 takes the likeliest (0.8)"},
            {"top-k", "only the k likeliest; 0: all (0)"},
            {"top-p", "only the likeliest of this probability together (1)"},
            {"seed", "of the draw (1)"}}),
       false, 1, 1, generate_verb},
      {"gradients",
       "RUN|CHECKPOINT",
       "histogram of the exponents of a model's gradients, and what float16 keeps of them",
       "gradients runs/quickstart --svg gradients.svg",
       {{"batches", "training batches to run (8)"},
        {"svg", "file for a picture of it"},
        {"device", "auto, cpu or cuda"},
        {"threads", "CPU threads"}},
       false,
       1,
       1,
       gradients_verb},
      {"replay",
       "RUN|BUNDLE",
       "run the step again in which a run diverged, and name the first op whose result or gradient is not finite",
       "replay runs/quickstart",
       {},
       false,
       1,
       1,
       [](const Arguments& a) {
         std::cout << replay(a.words[0]) << std::flush;
         return Exit::done;
       }},
      {"merge",
       "RUN|CHECKPOINT --out FOLDER",
       "add a run's adapters (model.lora) into the model under them, as a run of its own",
       "merge runs/adapters --out runs/merged",
       {{"out", "folder for the merged run"}},
       false,
       1,
       1,
       merge_verb},
      {"inspect",
       "PATH",
       "show a run, checkpoint, data folder or .safetensors file",
       "inspect runs/quickstart/checkpoints/step-00002000",
       {},
       false,
       1,
       1,
       [](const Arguments& a) {
         std::cout << inspect(a.words[0]) << std::flush;
         return Exit::done;
       }},
      {"verify",
       "PATH",
       "check a run, checkpoint or data folder against its checksums",
       "verify runs/quickstart",
       {},
       false,
       1,
       1,
       [](const Arguments& a) {
         std::cout << verify(a.words[0]) << std::flush;
         return Exit::done;
       }},
      {"bench",
       "step CONFIG [--section.key=value ...] | ops | peak | accumulation",
       "time training steps, or each op beside ATen's, or measure the matmul ceiling (the last line is JSON), or the "
       "error of long sums",
       "bench step configs/quickstart.toml --train.steps=50",
       {{"skip", "step: first steps left out of the times (2)"},
        {"dtype", "ops, peak: fp32 (default) or bf16"},
        {"threads", "ops, peak: CPU threads"},
        {"batch", "ops: sequences (4)"},
        {"context", "ops: tokens in a sequence (256)"},
        {"width", "ops: channels, a multiple of 64 (768)"},
        {"vocab", "ops: tokens that the head knows (50304)"},
        {"only", "ops: those whose name has this in it"},
        {"powers", "accumulation: up to 10^powers terms (7)"}},
       true,
       1,
       2,
       bench_verb},
      {"config",
       "show CONFIG | check CONFIG | docs | kernels",
       "the resolved config, a check of it, the reference of all keys, or which kernels this machine runs",
       "config show configs/quickstart.toml --amp.dtype=bf16",
       {},
       true,
       1,
       2,
       config_verb}};
  return all;
}

}  // namespace lathe
