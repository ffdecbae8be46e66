#include "train/run_config.h"

#include <cctype>
#include <cstring>

#include "core/error.h"
#include "core/io/file.h"

extern char** environ;

namespace lathe {
namespace {

std::string environment_name(const std::string& key) {
  std::string name = "LATHE_";
  for (char c : key) name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// A string key takes its text as it stands; others follow TOML's rules.
ConfigValue typed(const std::string& key, const std::string& text) {
  const Field* field = run_schema().find(key);
  const ConfigValue value = parse_value(text);
  if (field != nullptr && std::holds_alternative<std::string>(field->initial) &&
      !std::holds_alternative<std::string>(value)) {
    return text;
  }
  return value;
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

/// What must hold between keys.
void check(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto at = [&](const char* key) { return origin_of(loaded, key); };
  if (c.model.n_embd % c.model.n_head != 0) {
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
  if (c.schedule.kind != "constant" && c.schedule.min_lr > c.optim.lr) {
    fail(Exit::usage, at("schedule.min_lr"), ": schedule.min_lr = ", c.schedule.min_lr,
         " is above optim.lr = ", c.optim.lr);
  }
  if (c.amp.grad == "low" && c.amp.dtype == "fp32") {
    fail(Exit::usage, at("amp.grad"), ": amp.grad = \"low\" needs amp.dtype = \"bf16\"");
  }
  if (c.data.dir.empty())
    fail(Exit::usage, at("data.dir"), ": data.dir is empty; give the folder that holds train.bin");
}

}  // namespace

std::string origin_of(const LoadedConfig& loaded, const std::string& key) {
  const auto found = loaded.origins.find(key);
  return found == loaded.origins.end() ? "defaults" : found->second;
}

LoadedConfig load_config(const std::string& path, const std::vector<std::pair<std::string, std::string>>& overrides) {
  LoadedConfig loaded;
  if (fs::is_directory(path)) fail(Exit::usage, path, " is a folder, not a config file");
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
  return loaded;
}

RunConfig config_from_toml(const std::string& text, const std::string& where) {
  RunConfig config;
  for (const auto& entry : parse_toml(text, where)) {
    if (run_schema().find(entry.key) == nullptr)
      fail(Exit::checkpoint, where, ": a key this build does not have: ", entry.key);
    run_schema().set(&config, entry.key, entry.value, where);
  }
  return config;
}

}  // namespace lathe
