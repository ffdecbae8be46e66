#include "train/run_config.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/text.h"
#include "train/inspect.h"

extern char** environ;

namespace lathe {
namespace {

std::string environment_name(const std::string& key) {
  std::string name = "LATHE_";
  for (char c : key) name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// A key's value from its text; Schema::set refuses a key that there is not.
ConfigValue typed(const std::string& key, const std::string& text) {
  const Field* field = run_schema().find(key);
  return field != nullptr ? read_value(text, field->initial) : ConfigValue(text);
}

/// With the bytes that are not UTF-8 as \xHH.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = code_point_length(text, i);
    out += n > 0 ? text.substr(i, n) : format("\\x%02x", static_cast<unsigned char>(text[i]));
    i += std::max<size_t>(n, 1);
  }
  return out;
}

/// Checkpoints hold paths as text, which has to be UTF-8: the run folder, which may derive from the config's name, and
/// where a branch came from, which begins with the working folder.
void check_paths(const std::string& config) {
  if (!is_utf8(config))
    fail(Exit::usage, "the config's path ", escaped(config),
         " is not UTF-8; rename it, or call it from its own folder");
  std::error_code error;
  const std::string here = fs::current_path(error).string();
  if (error) fail(Exit::io, "the working folder can't be found (", error.message(), "); run lathe in another");
  if (!is_utf8(here)) fail(Exit::usage, "the working folder ", escaped(here), " is not UTF-8; run lathe in another");
}

/// What `path` is instead of a config file, and what to do with that.
void check_is_file(const std::string& path) {
  switch (kind_of(path)) {
    case PathKind::missing:
      fail(Exit::usage, "there is no config file ", path, "; configs/quickstart.toml is one to begin with");
    case PathKind::data:
      fail(Exit::usage, path, " is a data folder, not a config file; name it with --data.dir=", path,
           " beside a config");
    case PathKind::run:
      fail(Exit::usage, path, " is a run, not a config file; to go on with it: lathe train ",
           (fs::path(path) / "config.toml").string());
    case PathKind::checkpoint:
      fail(Exit::usage, path,
           " is a checkpoint, not a config file; to go on from it: lathe train CONFIG --checkpoint.resume=", path);
    case PathKind::folder:
      fail(Exit::usage, path, " is a folder, not a config file; configs/quickstart.toml is one to begin with");
    case PathKind::safetensors:
      fail(Exit::usage, path, " holds tensors and is no config file; configs/quickstart.toml is one to begin with");
    case PathKind::file: break;
  }
}

void read_environment(LoadedConfig& loaded) {
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    bool ours = false;
    std::string known;
    for (const auto& f : run_schema().fields()) {
      if (environment_name(f.key) == name) known = f.key;
    }
    for (const auto& s : run_schema().sections()) ours = ours || name.starts_with(environment_name(s.name) + "_");
    if (known.empty() && !ours) continue;
    if (known.empty()) {
      std::vector<std::string> names;
      for (const auto& f : run_schema().fields()) names.push_back(environment_name(f.key));
      const std::string near = nearest(name, names);
      fail(Exit::usage, "environment: ", name, " names no key", near.empty() ? "" : "; did you mean " + near + "?");
    }
    const std::string text = entry.substr(equals + 1);
    run_schema().set(&loaded.config, known, typed(known, text), str("environment: ", name, "=", text));
    loaded.origins[known] = name;
  }
}

/// Contradictions in [amp]: each with the place and the remedy.
void check_amp(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const AmpConfig& a = c.amp;
  const auto refuse = [&](const std::string& key, const auto&... why) {
    fail(Exit::usage, origin_of(loaded, key), ": ", why...);
  };
  const auto given = [&](const std::string& key) {  // with another value than the default, which a saved config has
    const Field& field = *run_schema().find(key);
    return run_schema().get(&c, field) != field.initial;
  };
  if (a.grad == "low" && a.dtype == "fp32")
    refuse("amp.grad", "amp.grad = \"low\" needs amp.dtype = \"bf16\", \"fp16\" or \"fp8\"");
  if (a.dtype != "fp16" && (a.scaler == "dynamic" || a.scaler == "fixed")) {
    refuse("amp.scaler", "amp.scaler = \"", a.scaler, "\" is for amp.dtype = \"fp16\"; ", a.dtype,
           a.dtype == "fp8" ? " scales each tensor" : " has float32's range", ", so leave amp.scaler out");
  }
  const bool scaled = a.dtype == "fp16" && a.scaler != "none", dynamic = scaled && a.scaler != "fixed";
  for (const char* key : {"amp.loss_scale", "amp.max_skips"}) {
    if (given(key) && !scaled)
      refuse(key, key, " has no effect: nothing is scaled with amp.dtype = \"", a.dtype, "\" and amp.scaler = \"",
             a.scaler, "\"; leave it out");
  }
  for (const char* key : {"amp.growth_factor", "amp.backoff_factor", "amp.growth_interval", "amp.min_loss_scale"}) {
    if (given(key) && !dynamic)
      refuse(key, key,
             " has no effect without a dynamic scaler (amp.dtype = \"fp16\", amp.scaler = \"dynamic\"); leave it out");
  }
  if (dynamic && a.min_loss_scale > a.loss_scale)
    refuse("amp.min_loss_scale", "amp.min_loss_scale = ", a.min_loss_scale,
           " is above amp.loss_scale = ", a.loss_scale);
  if (!a.master && a.dtype == "fp32")
    refuse("amp.master", "amp.master = false needs amp.dtype = \"bf16\", \"fp16\" or \"fp8\"");
  const bool low = a.dtype != "fp32";
  if (given("amp.working_copies") && (!low || !a.master))
    refuse("amp.working_copies", "amp.working_copies has no effect ", low ? "with amp.master = false" : "in fp32",
           "; leave it out");
  if (given("amp.cache") && (!low || a.working_copies))
    refuse("amp.cache", "amp.cache has no effect ", low ? "with amp.working_copies = true" : "in fp32",
           "; leave it out");
  if (given("amp.rounding") && a.rounding != "auto" && a.master)
    refuse("amp.rounding", "amp.rounding has no effect with amp.master = true; leave it out");
  if (a.rounding == "stochastic" && a.dtype == "fp16")
    refuse(
        "amp.rounding",
        "amp.rounding = \"stochastic\" is for bf16 parameters; use amp.dtype = \"bf16\" or amp.rounding = \"nearest\"");
  for (const char* key : {"amp.fp8_scaling", "amp.fp8_history", "amp.fp8_edge_blocks"}) {
    if (given(key) && a.dtype != "fp8") refuse(key, key, " has no effect without amp.dtype = \"fp8\"; leave it out");
  }
  if (given("amp.fp8_history") && a.fp8_scaling != "delayed")
    refuse("amp.fp8_history", "amp.fp8_history has no effect without amp.fp8_scaling = \"delayed\"; leave it out");
  if (a.dtype != "fp8") return;
  if (c.model.n_embd % 16 != 0) {
    refuse("model.n_embd", "model.n_embd = ", c.model.n_embd,
           " is not a multiple of 16, which fp8 matmuls need; change it or amp.dtype");
  }
  if (c.train.batch_size * c.model.block_size % 16 != 0) {
    refuse("train.batch_size", "train.batch_size = ", c.train.batch_size,
           " times model.block_size = ", c.model.block_size,
           " is not a multiple of 16, which fp8 matmuls need; change one of them or amp.dtype");
  }
  if (2 * a.fp8_edge_blocks >= c.model.n_layer) {
    refuse("amp.fp8_edge_blocks", "amp.fp8_edge_blocks = ", a.fp8_edge_blocks,
           " first and last blocks leave none of model.n_layer = ", c.model.n_layer, " to fp8; lower it");
  }
}

/// Contradictions among model.lora*.
void check_lora(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const ModelConfig& m = c.model;
  const auto refuse = [&](const std::string& key, const auto&... why) {
    fail(Exit::usage, origin_of(loaded, key), ": ", why...);
  };
  if (m.lora == 0) {
    for (const auto& f : run_schema().fields()) {
      if (f.key.starts_with("model.lora_") && run_schema().get(&c, f) != f.initial)
        refuse(f.key, f.key, " has no effect with model.lora = 0; leave it out or give a rank");
    }
    return;
  }
  if (m.lora_base.empty()) refuse("model.lora", "model.lora needs model.lora_base, the run to put adapters on");
  if (m.lora_double_quant && m.lora_dtype != "nf4")
    refuse("model.lora_double_quant", "model.lora_double_quant is for model.lora_dtype = \"nf4\"");
  if (c.amp.dtype == "fp8") refuse("amp.dtype", "amp.dtype = \"fp8\" can't be used with model.lora; use \"bf16\"");
  const bool quantised = m.lora_dtype == "int8" || m.lora_dtype == "nf4";
  if (quantised ? c.amp.dtype == "fp32" : m.lora_dtype != c.amp.dtype) {
    refuse("model.lora_dtype", "model.lora_dtype = \"", m.lora_dtype, "\" needs amp.dtype = \"",
           quantised ? "bf16\" or \"fp16" : m.lora_dtype, "\", and it is \"", c.amp.dtype, "\"");
  }
}

/// What must hold between keys.
void check(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto at = [&](const char* key) { return origin_of(loaded, key); };
  if (c.model.lora == 0 && c.model.n_embd % c.model.n_head != 0) {  // adapters take the model from their base
    // The place that was given last: the command line, then the environment, then the file.
    const std::string embd = at("model.n_embd"), head = at("model.n_head");
    const bool blame_embd =
        embd == "command line" || head == "defaults" || (embd.starts_with("LATHE_") && head != "command line");
    fail(Exit::usage, blame_embd ? embd : head, ": model.n_embd = ", c.model.n_embd,
         " is not divisible by model.n_head = ", c.model.n_head, "; change one of them");
  }
  if (c.optim.nesterov && (c.optim.dampening != 0 || c.optim.momentum == 0)) {
    fail(Exit::usage, at("optim.nesterov"), ": optim.nesterov needs optim.dampening = 0 and optim.momentum > 0");
  }
  if (c.schedule.min_lr < 0 && c.schedule.min_lr != -1) {
    fail(Exit::usage, at("schedule.min_lr"), ": schedule.min_lr = ", c.schedule.min_lr,
         " is not allowed; it must be >= 0, or -1 for a tenth of optim.lr");
  }
  if (c.schedule.kind != "constant" && c.schedule.min_lr > c.optim.lr) {
    fail(Exit::usage, at("schedule.min_lr"), ": schedule.min_lr = ", c.schedule.min_lr,
         " is above optim.lr = ", c.optim.lr);
  }
  const int64_t step_tokens = tokens_of_step(c);
  if (c.train.steps > std::numeric_limits<int64_t>::max() / 2 / step_tokens) {
    fail(Exit::usage, at("train.steps"), ": train.steps = ", c.train.steps,
         " times train.grad_accum = ", c.train.grad_accum, ", train.batch_size = ", c.train.batch_size,
         " and model.block_size = ", c.model.block_size, " are more tokens than can be counted; lower train.steps");
  }
  if (c.checkpoint.async_save && c.checkpoint.interval == 0 && !c.checkpoint.keep_best) {
    fail(Exit::usage, at("checkpoint.async_save"),
         ": checkpoint.async_save has no effect with checkpoint.interval = 0; leave it out or give an interval");
  }
  check_amp(loaded);
  check_lora(loaded);
  if (c.data.dir.empty())
    fail(Exit::usage, at("data.dir"), ": data.dir is empty; give the folder that holds train.bin");
}

}  // namespace

int64_t tokens_of_step(const RunConfig& c) {
  return c.train.grad_accum * c.train.batch_size * c.model.block_size;  // 1e18 at most, by the keys' rules
}

std::string origin_of(const LoadedConfig& loaded, const std::string& key) {
  const auto found = loaded.origins.find(key);
  return found == loaded.origins.end() ? "defaults" : found->second;
}

LoadedConfig load_config(const std::string& path, const std::vector<std::pair<std::string, std::string>>& overrides) {
  LoadedConfig loaded;
  loaded.path = path;
  check_paths(path);
  check_is_file(path);
  for (const auto& entry : read_toml(path)) {
    run_schema().set(&loaded.config, entry.key, entry.value, entry.where);
    loaded.origins[entry.key] = entry.where;
  }
  read_environment(loaded);
  for (const auto& [key, text] : overrides) {
    run_schema().set(&loaded.config, key, typed(key, text), str("command line: --", key, "=", text));
    loaded.origins[key] = "command line";
  }
  if (loaded.config.train.out_dir.empty())
    loaded.config.train.out_dir = (fs::path("runs") / fs::path(path).stem()).string();
  check(loaded);
  loaded.config.schedule.min_lr = end_of_schedule(loaded.config.schedule, loaded.config.optim.lr);
  return loaded;
}

RunConfig config_from_toml(const std::string& text, const std::string& where) {
  RunConfig config;
  try {
    for (const auto& entry : parse_toml(text, where)) {
      if (run_schema().find(entry.key) == nullptr)
        fail(Exit::checkpoint, where, ": a key this build does not have: ", entry.key);
      run_schema().set(&config, entry.key, entry.value, where);
    }
  } catch (const Error& e) {
    fail(Exit::checkpoint, e.what());
  }
  return config;
}

}  // namespace lathe
