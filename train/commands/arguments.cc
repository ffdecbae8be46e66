#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/log.h"
#include "data/prepare/documents.h"
#include "train/commands/commands.h"
#include "train/config/path_kind.h"
#include "train/store/checkpoint.h"

namespace lathe {

double Arguments::number(const std::string& name, double otherwise, const Rule& rule,
                         bool whole) const {
  const auto found = flags.find(name);
  if (found == flags.end()) return otherwise;

  const ConfigValue v =
      read_value(found->second, whole ? ConfigValue(int64_t{0}) : ConfigValue(0.0));
  double x = 0;
  if (const auto* i = std::get_if<int64_t>(&v))
    x = static_cast<double>(*i);
  else if (const auto* d = std::get_if<double>(&v); d && !whole)
    x = *d;
  else
    fail(Exit::usage, where(name), " must be a ", whole ? "whole " : "", "number, not ",
         found->second);

  Rule allowed = rule;
  if (whole)
    allowed.max = std::min(allowed.max, 0x1p53);  // above 2^53, a double can't hold every integer
  if (!std::isfinite(x) || !(x >= rule.min && x <= allowed.max) ||
      (rule.open_min && x == rule.min)) {
    fail(Exit::usage, where(name), " = ", found->second, " is not allowed; it must be ",
         rule_text(allowed));
  }
  return x;
}

std::string Arguments::choice(const std::string& name, const std::string& otherwise,
                              const std::vector<std::string>& allowed) const {
  const std::string value = get(name, otherwise);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
    fail(Exit::usage, "command line: --", name, " must be ", rule_text(one_of(allowed)), ", not ",
         value);
  return value;
}

bool wants_ema(const Arguments& arguments) {
  const std::string weights = arguments.get("weights", "model");
  if (weights != "model" && weights != "ema")
    fail(Exit::usage, "command line: --weights must be model or ema, not ", weights);
  return weights == "ema";
}

bool Arguments::is_true(const std::string& name) const {
  const std::string value = get(name, "false");
  if (value != "true" && value != "false")
    fail(Exit::usage, "command line: --", name, " must be true or false, not ", value);
  return value == "true";
}

void check_flags(const Arguments& arguments, const std::set<std::string>& known, bool config_keys,
                 const std::string& hint) {
  for (const auto& [flag, value] : arguments.flags) {
    if (!known.contains(flag) && !(config_keys && flag.find('.') != std::string::npos))
      fail(Exit::usage, "command line: `lathe ", arguments.command, " ", arguments.positionals[0],
           "` has no --", flag, hint);
  }
}

std::vector<std::string> comma_list(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Overrides key_arguments(const Arguments& arguments) {
  Overrides keys;
  for (const auto& [key, value] : arguments.flags) {
    if (key.find('.') != std::string::npos) keys.emplace_back(key, value);
  }
  return keys;
}

LoadedConfig load_config_argument(const Arguments& arguments, size_t at) {
  LoadedConfig loaded = load_config(arguments.positionals.at(at), key_arguments(arguments));
  const std::string& level = loaded.config.log.level;
  set_console_level(level == "debug"  ? Level::debug
                    : level == "info" ? Level::info
                    : level == "warn" ? Level::warn
                                      : Level::error);
  return loaded;
}

Tokenizer tokenizer_at(const fs::path& path) {
  const PathKind kind = kind_of(path);
  if (kind != PathKind::run && kind != PathKind::checkpoint) return Tokenizer::bpe(path);
  const auto tokenizer = read_state(find_checkpoint(path)).tokenizer;
  if (!tokenizer || tokenizer->bpe() == nullptr)
    fail(Exit::usage, "command line: --tokenizer: the run ", path.string(), " has ",
         tokenizer ? "a tokenizer of kind " + tokenizer->kind() : "no tokenizer",
         ", but only a BPE tokenizer can be taken from a run; give byte or char to `lathe prepare` "
         "by name");
  return *tokenizer;
}

fs::path run_argument(const Arguments& arguments) {
  const std::string& path = arguments.positionals.at(0);
  const bool eval = arguments.command == "eval";
  switch (kind_of(path)) {
    case PathKind::data:
      fail(Exit::checkpoint, path, " is a data folder; lathe ", arguments.command,
           " needs a run or a checkpoint", eval ? "; give the data folder as --data " + path : "");
    case PathKind::file:
    case PathKind::safetensors:
    case PathKind::gguf:
      fail(Exit::checkpoint, path, " is a file; lathe ", arguments.command,
           " needs a run or a checkpoint folder");
    default: return path;
  }
}

void check_output(const Arguments& arguments, const fs::path& file, std::string_view mark) {
  const bool force = arguments.is_true("force");
  const fs::file_status status = fs::status(file);
  if (!fs::exists(status)) return;
  if (!fs::is_regular_file(status))
    fail(Exit::usage, file.string(), " is not a regular file; name another file");

  std::string head(std::max<size_t>(4096, mark.size()), '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(in.gcount()));

  const bool is_empty = fs::file_size(file) == 0;
  if (!force && !is_empty && head.find(mark) == std::string::npos) {
    fail(Exit::usage, file.string(), " already exists, and is not the output of a lathe ",
         arguments.command, " like this one; name another file, or replace it with --force true");
  }
}

std::string load_dtype_argument(const Arguments& arguments, const std::string& otherwise) {
  static const std::set<std::string> dtypes{"fp32", "bf16", "fp16", "int8", "nf4"};
  const std::string dtype = arguments.get("load-dtype", otherwise);
  if (!dtype.empty() && !dtypes.contains(dtype))
    fail(Exit::usage, "command line: --load-dtype must be fp32, bf16, fp16, int8 or nf4, not ",
         dtype);
  return dtype;
}

bool double_quant_argument(const Arguments& arguments, const std::string& dtype) {
  const bool twice = arguments.is_true("double-quant");
  if (twice && dtype != "nf4")
    fail(Exit::usage, "command line: --double-quant needs --load-dtype nf4");
  return twice;
}

LoadedModel load_model_argument(const Arguments& arguments) {
  const std::string device = arguments.get("device", "auto"),
                    dtype = load_dtype_argument(arguments, "");
  if (device != "auto" && device != "cpu" && device != "cuda")
    fail(Exit::usage, "command line: --device must be auto, cpu or cuda, not ", device);

  const bool twice = double_quant_argument(arguments, dtype);
  const bool average = wants_ema(arguments);
  const int threads =
      static_cast<int>(arguments.number("threads", default_threads(), between(1, 4096), true));
  LoadedModel m = LoadedModel::open(run_argument(arguments), device, threads, dtype, twice,
                                    arguments.get("checkpoint", "newest"), average);

  // Print the dtypes to standard error, since standard output is for the result.
  const at::ScalarType matmuls = m.compute.dtype, generating = matmul_dtype(matmuls);
  std::cerr << "matmuls in " << dtype_name(matmuls)
            << (generating == matmuls ? "" : " (generation: " + dtype_name(generating) + ")")
            << ", weights loaded as " << m.load_dtype << ", checkpoint in " << m.saved_dtype
            << "\n";
  return m;
}

Flags with_load_flags(Flags flags) {
  flags.insert(
      flags.end(),
      {checkpoint_flag,
       weights_flag,
       {"load-dtype",
        "Keep the weights as fp32, bf16, fp16, int8 or nf4. Default: fp32, or adapters.dtype for "
        "adapters.",
        {"fp32", "bf16", "fp16", "int8", "nf4"}},
       {"double-quant", "Also quantize nf4's scales, to 8 bits."},
       device_flag,
       threads_flag});
  return flags;
}

void check_field_is_used(const Arguments& arguments, const DocumentSource& source) {
  const auto has_lines = [&](const std::string& file) { return is_jsonl(source, file); };
  if (!arguments.flags.contains("field") || std::ranges::any_of(source.files, has_lines)) return;
  fail(Exit::usage, "command line: --field is for JSON Lines, but no file is read as JSON Lines; ",
       arguments.command == "eval" ? "leave it out, or name the file .jsonl"
                                   : "give --format jsonl if the files are JSON Lines");
}

}  // namespace lathe
