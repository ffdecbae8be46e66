#include "train/verbs.h"

#include <iostream>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/memory.h"
#include "train/adapters.h"
#include "train/bench.h"
#include "train/checkpoint.h"
#include "train/generate.h"
#include "train/inspect.h"
#include "train/load.h"
#include "train/plan.h"
#include "train/precision.h"
#include "train/prepare.h"
#include "train/replay.h"
#include "train/session.h"
#include "train/trainer.h"

namespace lathe {

double Words::number(const std::string& name, double otherwise, const Rule& rule, bool whole) const {
  const auto found = flags.find(name);
  if (found == flags.end()) return otherwise;
  const ConfigValue v = parse_value(found->second);
  double x = 0;
  if (const auto* i = std::get_if<int64_t>(&v))
    x = static_cast<double>(*i);
  else if (const auto* d = std::get_if<double>(&v); d && !whole)
    x = *d;
  else
    fail(Exit::usage, "command line: --", name, " must be a ", whole ? "whole " : "", "number, not ", found->second);
  if (!(x >= rule.min && x <= rule.max) || (rule.open_min && x == rule.min)) {
    fail(Exit::usage, "command line: --", name, " = ", found->second, " is not allowed; it must be ", rule_text(rule));
  }
  return x;
}

LoadedConfig config_of(const Words& words, size_t at) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (const auto& [key, value] : words.flags) {
    if (key.find('.') != std::string::npos) overrides.emplace_back(key, value);
  }
  LoadedConfig loaded = load_config(words.rest.at(at), overrides);
  const std::string& level = loaded.config.log.level;
  set_console_level(level == "debug"  ? Level::debug
                    : level == "info" ? Level::info
                    : level == "warn" ? Level::warn
                                      : Level::error);
  return loaded;
}

namespace {

LoadedModel model_of(const Words& words) {
  const std::string device = words.get("device", "auto"), dtype = words.get("load-dtype", "");
  if (device != "auto" && device != "cpu" && device != "cuda")
    fail(Exit::usage, "command line: --device must be auto, cpu or cuda, not ", device);
  if (!dtype.empty() && dtype != "fp32" && dtype != "bf16" && dtype != "fp16" && dtype != "int8" && dtype != "nf4")
    fail(Exit::usage, "command line: --load-dtype must be fp32, bf16, fp16, int8 or nf4, not ", dtype);
  const std::string twice = words.get("double-quant", "false");
  if (twice != "true" && twice != "false")
    fail(Exit::usage, "command line: --double-quant must be true or false, not ", twice);
  if (twice == "true" && dtype != "nf4") fail(Exit::usage, "command line: --double-quant belongs to --load-dtype nf4");
  const int threads = static_cast<int>(words.number("threads", default_threads(), between(1, 4096), true));
  LoadedModel m = LoadedModel::open(words.rest.at(0), device, threads, dtype, twice == "true");
  // To standard error: what goes to standard output is the result.
  std::cerr << "matmuls in " << dtype_name(matmul_dtype(m.compute.dtype)) << ", matrices kept as " << m.load_dtype
            << ", saved as " << m.saved_dtype << "\n";
  return m;
}

Exit eval_verb(const Words& words) {
  const LoadedModel m = model_of(words);
  const fs::path folder = words.get("data", m.config.data.dir);
  const auto manifest = read_manifest(folder);
  const TokenFile val(folder, "val", manifest);
  if (val.size() < 2)
    fail(Exit::data, folder.string(), " has ", val.size(), " validation token; a loss needs at least two");
  check_tokenizer(folder, manifest, m.state);
  const auto batch = static_cast<int64_t>(
      words.number("batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
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

Exit generate_verb(const Words& words) {
  Sampling s{.temperature = words.number("temperature", 0.8, at_least(0), false),
             .top_k = static_cast<int64_t>(words.number("top-k", 0, at_least(0), true)),
             .top_p = words.number("top-p", 1, {.min = 0, .max = 1, .open_min = true}, false),
             .seed = static_cast<uint64_t>(words.number("seed", 1, at_least(0), true))};
  const auto n = static_cast<int64_t>(words.number("tokens", 300, between(1, 1e9), true));
  const LoadedModel m = model_of(words);
  if (!m.state.tokenizer) {
    fail(Exit::data, words.rest[0],
         " was trained on data without a manifest.json, so there is no tokenizer to read or write text with");
  }
  const std::string prompt = words.get("prompt", "\n");
  const auto ids = m.state.tokenizer->encode(prompt, Exit::usage);
  if (ids.empty()) fail(Exit::usage, "command line: --prompt is empty; give at least one character");
  std::cout << prompt << std::flush;
  generate(m.model, ids, n, s, m.compute,
           [&](int64_t id) { return bool(std::cout << m.state.tokenizer->decode({id}) << std::flush); });
  std::cout << std::endl;
  return Exit::done;
}

Exit merge_verb(const Words& words) {
  const fs::path out = words.get("out", "");
  if (out.empty()) fail(Exit::usage, "lathe merge needs --out FOLDER");
  log_info("merged into ", merge(words.rest[0], out).string());
  return Exit::done;
}

Exit gradients_verb(const Words& words) {
  const auto batches = static_cast<int64_t>(words.number("batches", 8, between(1, 100000), true));
  const LoadedModel m = model_of(words);
  if (m.config.model.lora > 0) fail(Exit::usage, words.rest[0], " has adapters; merge them first (`lathe merge`)");
  const GradientExponents e = gradient_exponents(m, batches);
  std::cout << exponents_text(e) << std::flush;
  if (words.flags.contains("svg")) write_file_durably(words.get("svg", ""), exponents_svg(e));
  return Exit::done;
}

Exit prepare_verb(const Words& words) {
  PrepareOptions o{.inputs = words.rest, .out = words.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe prepare needs --out FOLDER");
  o.tokenizer = words.get("tokenizer", "byte");
  if (o.tokenizer != "byte" && o.tokenizer != "char")
    fail(Exit::usage, "command line: --tokenizer must be byte or char, not ", o.tokenizer);
  o.val_share = words.number("val", 0.1, between(0, 0.9), false);
  o.shard_tokens = static_cast<int64_t>(words.number("shard-tokens", 1e8, at_least(1), true));
  prepare(o);
  return Exit::done;
}

Exit config_verb(const Words& words) {
  const std::string& what = words.rest[0];
  if (what == "kernels") {
    if (words.rest.size() != 1 || !words.flags.empty())
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
  if (words.rest.size() != 2) fail(Exit::usage, "lathe config ", what, " needs a config file");
  const LoadedConfig loaded = config_of(words, 1);
  if (what == "show")
    std::cout << run_schema().to_toml(&loaded.config, /*comments=*/true);
  else
    std::cout << words.rest[1] << ": fine\n";
  return Exit::done;
}

using Flags = std::vector<std::pair<const char*, const char*>>;

/// A verb's own flags and those that model_of reads.
Flags and_loading(Flags flags) {
  flags.insert(flags.end(), {{"load-dtype",
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
       {},
       true,
       1,
       1,
       [](const Words& w) { return train(config_of(w)); }},
      {"plan",
       "CONFIG [--section.key=value ...]",
       "what a run will need: memory, FLOPs, time, disk",
       {},
       true,
       1,
       1,
       [](const Words& w) {
         std::cout << plan(config_of(w)) << std::flush;
         return Exit::done;
       }},
      {"prepare",
       "IN... --out FOLDER",
       "turn text files, or folders of them, into token shards",
       {{"out", "folder for the shards"},
        {"tokenizer", "byte (default) or char"},
        {"val", "share of the text for validation, from its tail (0.1)"},
        {"shard-tokens", "most tokens in one file (100000000)"}},
       false,
       1,
       1000000,
       prepare_verb},
      {"eval", "RUN|CHECKPOINT", "loss over the validation split; the last line is JSON",
       and_loading(
           {{"data", "data folder (default: the run's)"}, {"batch-size", "sequences at once (default: the run's)"}}),
       false, 1, 1, eval_verb},
      {"generate", "RUN|CHECKPOINT", "write text",
       and_loading({{"prompt", "text to continue (a line break)"},
                    {"tokens", "how many to write (300)"},
                    {"temperature", "0 takes the likeliest (0.8)"},
                    {"top-k", "only the k likeliest; 0: all (0)"},
                    {"top-p", "only the likeliest of this probability together (1)"},
                    {"seed", "of the draw (1)"}}),
       false, 1, 1, generate_verb},
      {"gradients",
       "RUN|CHECKPOINT",
       "histogram of the exponents of a model's gradients, and what float16 keeps of them",
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
       {},
       false,
       1,
       1,
       [](const Words& w) {
         std::cout << replay(w.rest[0]) << std::flush;
         return Exit::done;
       }},
      {"merge",
       "RUN|CHECKPOINT --out FOLDER",
       "add a run's adapters (model.lora) into the model under them, as a run of its own",
       {{"out", "folder for the merged run"}},
       false,
       1,
       1,
       merge_verb},
      {"inspect",
       "PATH",
       "show a run, checkpoint, data folder or .safetensors file",
       {},
       false,
       1,
       1,
       [](const Words& w) {
         std::cout << inspect(w.rest[0]) << std::flush;
         return Exit::done;
       }},
      {"verify",
       "PATH",
       "check a run, checkpoint or data folder against its checksums",
       {},
       false,
       1,
       1,
       [](const Words& w) {
         std::cout << verify(w.rest[0]) << std::flush;
         return Exit::done;
       }},
      {"bench",
       "step CONFIG [--section.key=value ...] | ops | peak | accumulation",
       "time training steps, or each op beside ATen's, or measure the matmul ceiling (the last line is JSON), or the "
       "error of long sums",
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
       {},
       true,
       1,
       2,
       config_verb}};
  return all;
}

}  // namespace lathe
