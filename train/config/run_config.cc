#include "train/config/run_config.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <limits>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/shipped.h"
#include "core/io/text.h"
#include "train/config/check_config.h"
#include "train/config/path_kind.h"
#include "train/config/task_keys.h"
#include "train/config/transform.h"

extern char** environ;

namespace lathe {
namespace {

std::string environment_name(const std::string& key) {
  std::string name = "LATHE_";
  for (char c : key)
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// The old and the new names of keys that were renamed.
constexpr std::pair<const char*, const char*> renamed[]{
    {"model.lora", "adapters.rank"},
    {"model.lora_alpha", "adapters.alpha"},
    {"model.lora_base", "adapters.base"},
    {"model.lora_dtype", "adapters.dtype"},
    {"model.lora_double_quant", "adapters.double_quant"}};
const char* new_name(const std::string& key) {
  for (const auto& [was, is] : renamed) {
    if (key == was) return is;
  }
  return nullptr;
}

/// Sets a key. A key of another model kind throws Exit::usage with the names of both kinds. If a
/// source of weights will determine the kind, such a key is skipped, and adopt_model() checks it
/// later.
void set(LoadedConfig& loaded, const GivenKey& given) {
  const auto& [key, value, is_text, where] = given;
  const std::string& kind = loaded.config.model.kind;
  if (const char* name = new_name(key))
    fail(Exit::usage, where, ": ", key, " is called ", name, " now; write that");

  const Field* field = loaded.config.schema().find(key);
  if (field == nullptr) {
    std::string others;
    for (const ModelKind& other : model_kinds()) {
      if (RunConfig::schema(other.name).find(key) != nullptr)
        others += str(others.empty() ? "" : " or ", '"', other.name, '"');
    }
    if (!others.empty()) {
      if (has_source(loaded.config) && !loaded.origins.contains("model.kind")) return;
      fail(Exit::usage, where, ": ", key, " is a key of model.kind = ", others,
           ", and this model's is \"", kind, "\"; leave it out or change the kind");
    }
  }
  loaded.config.schema().set(&loaded.config, key, given.read_as(field), where);
}

/// Sets model.kind, and sets the keys of that kind to their defaults.
void set_kind(RunConfig& config, const ConfigValue& value, const std::string& where) {
  config.schema().set(&config, "model.kind", value, where);
  const ModelKind* kind = find_model_kind(config.model.kind);
  if (kind == nullptr) {
    std::string names;
    for (const ModelKind& k : model_kinds()) names += (names.empty() ? "" : " | ") + k.name;
    fail(Exit::usage, where, ": model.kind = ", toml_text(value), " is not allowed; it must be ",
         names);
  }
  config.model.own = kind->config;
}

/// Returns the text with each byte that is not part of valid UTF-8 replaced by \xHH.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = code_point_length(text, i);
    out += n > 0 ? text.substr(i, n) : format("\\x%02x", static_cast<unsigned char>(text[i]));
    i += std::max<size_t>(n, 1);
  }
  return out;
}

/// Throws unless the path of the config and the working folder are UTF-8. Checkpoints store both as
/// text: the name of the run folder may derive from the config's name, and the origin of a branch
/// begins with the working folder.
void check_paths(const std::string& config) {
  if (!is_utf8(config))
    fail(Exit::usage, "the config's path ", escaped(config),
         " is not UTF-8; rename the file or folder whose name is not UTF-8");
  std::error_code error;
  const std::string here = fs::current_path(error).string();
  if (error)
    fail(Exit::io, "the working folder can't be found (", error.message(),
         "); run lathe in another");
  if (!is_utf8(here))
    fail(Exit::usage, "the working folder ", escaped(here), " is not UTF-8; run lathe in another");
}

/// Throws Exit::usage if `path` is not a config file. The message names what the path is and what
/// to do.
void check_is_file(const std::string& path) {
  switch (kind_of(path)) {
    case PathKind::missing:
      fail(Exit::usage, "there is no config file ", path, "; ",
           shipped_file("configs/quickstart.toml"), " is one to begin with");
    case PathKind::data:
      fail(Exit::usage, path,
           " is a data folder, not a config file; name it with --data.dir=", path,
           " beside a config");
    case PathKind::run:
      fail(Exit::usage, path, " is a run, not a config file; to resume it: lathe train ",
           (fs::path(path) / "config.toml").string());
    case PathKind::checkpoint:
      fail(Exit::usage, path,
           " is a checkpoint, not a config file; to resume from it: lathe train CONFIG "
           "--checkpoint.resume=",
           path);
    case PathKind::hugging_face:
      fail(Exit::usage, path,
           " is a Hugging Face folder, not a config file; to begin with its weights: lathe train ",
           "CONFIG --train.init_from=", path);
    case PathKind::folder:
      fail(Exit::usage, path, " is a folder, not a config file; ",
           shipped_file("configs/quickstart.toml"), " is one to begin with");
    case PathKind::gguf:
      fail(Exit::usage, path,
           " is a GGUF file, not a config file; to make a run of it: lathe import ", path,
           " --out RUN");
    case PathKind::safetensors:
      fail(Exit::usage, path, " holds tensors and is not a config file; ",
           shipped_file("configs/quickstart.toml"), " is one to begin with");
    case PathKind::file: break;
  }
}

/// An environment variable that sets a key.
struct EnvironmentKey {
  std::string key, name, text;
};
std::vector<EnvironmentKey> read_environment() {
  std::vector<EnvironmentKey> found;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);

    bool ours = false;
    std::string known;
    for (const auto& f : all_fields()) {
      if (environment_name(f.key) == name) known = f.key;
    }
    for (const auto& [was, is] : renamed) {
      if (environment_name(was) == name) known = was;
    }
    for (const auto& s : RunConfig::schema("gpt").sections())
      ours = ours || name.starts_with(environment_name(s.name) + "_");

    if (known.empty() && !ours) continue;
    if (known.empty()) {
      std::vector<std::string> names;
      for (const auto& f : all_fields()) names.push_back(environment_name(f.key));
      const std::string near = nearest(name, names);
      fail(Exit::usage, "environment: ", name, " names no key",
           near.empty() ? "" : "; did you mean " + near + "?");
    }

    found.push_back({.key = known, .name = name, .text = entry.substr(equals + 1)});
  }
  return found;
}

}  // namespace

std::map<std::string, AnyConfig> RunConfig::transform_configs() {
  std::map<std::string, AnyConfig> configs;
  for (const Transform& t : lathe::transforms()) configs[t.name] = t.config;
  return configs;
}

std::map<std::string, AnyConfig> RunConfig::task_configs() {
  std::map<std::string, AnyConfig> configs;
  for (const TaskKeys& t : task_keys()) configs[t.name] = t.config;
  return configs;
}

RunConfig::RunConfig() = default;
RunConfig::RunConfig(const RunConfig&) = default;
RunConfig::RunConfig(RunConfig&&) noexcept = default;
RunConfig& RunConfig::operator=(const RunConfig&) = default;
RunConfig& RunConfig::operator=(RunConfig&&) noexcept = default;
RunConfig::~RunConfig() = default;

const Schema& RunConfig::schema(const std::string& kind) {
  static std::map<std::string, Schema> made;
  const auto found = made.find(kind);
  if (found != made.end()) return found->second;
  Schema schema = schema_of<RunConfig>();
  if (const ModelKind* k = find_model_kind(kind)) {
    schema.add("model", k->config.schema(),
               [](void* config) { return static_cast<RunConfig*>(config)->model.own.data(); });
  }
  for (const Transform& t : lathe::transforms()) {
    if (t.config.schema().fields().empty()) continue;
    schema.add_section({t.name, t.doc});
    schema.add(t.name, t.config.schema(), [name = t.name](void* config) {
      return static_cast<RunConfig*>(config)->transforms.at(name).data();
    });
  }
  for (const TaskKeys& t : task_keys()) {
    schema.add_section({t.name, t.doc});
    schema.add(t.name, t.config.schema(), [name = t.name](void* config) {
      return static_cast<RunConfig*>(config)->tasks.at(name).data();
    });
  }
  return made.emplace(kind, std::move(schema)).first->second;
}

const std::vector<Field>& all_fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> fields;
    for (const ModelKind& kind : model_kinds()) {
      for (const Field& f : RunConfig::schema(kind.name).fields()) {
        const auto same = [&](const Field& other) { return other.key == f.key; };
        if (std::none_of(fields.begin(), fields.end(), same)) fields.push_back(f);
      }
    }
    return fields;
  }();
  return all;
}

std::vector<std::string> renamed_keys() {
  std::vector<std::string> keys;
  for (const auto& [was, is] : renamed) keys.emplace_back(was);
  return keys;
}

std::string config_reference() {
  std::string text = schema_of<RunConfig>().to_markdown("model");
  for (const ModelKind& kind : model_kinds()) {
    Schema own;
    own.add_section({"model", "kind = \"" + kind.name + "\", " + kind.doc});
    own.add("model", kind.config.schema(), nullptr);
    text += own.to_markdown();
  }
  const Schema& whole = RunConfig::schema("gpt");
  for (const Section& s : whole.sections()) {
    if (s.name != "model") text += whole.to_markdown(s.name);
  }
  return text;
}

BatchSizes batch_sizes(const RunConfig& c) {
  const int64_t* vocab_size = c.model.own.find<int64_t>("vocab_size");
  return {.batch_size = c.train.batch_size,
          .block_size = c.data.window > 0 ? c.data.window : model_context(c),
          .vocab_size = vocab_size != nullptr ? *vocab_size : 0};
}

int64_t model_context(const RunConfig& c) {
  const int64_t* found = c.model.own.find<int64_t>("block_size");
  return found != nullptr ? *found : 0;
}

const char* window_key(const RunConfig& c) {
  return c.data.window > 0 ? "data.window" : "model.block_size";
}

int64_t units_of_micro_batch(const RunConfig& c) {
  return c.train.batch_size * std::max<int64_t>(1, batch_sizes(c).block_size);
}

int64_t units_of_step(const RunConfig& c) {
  return c.train.grad_accum * units_of_micro_batch(c);  // at most 1e18, by the rules of these keys
}

std::string origin_of(const LoadedConfig& loaded, const std::string& key) {
  const auto found = loaded.origins.find(key);
  if (found != loaded.origins.end()) return found->second;
  return (loaded.path.empty() ? "" : loaded.path + ", ") + "default of " + key;
}

LoadedConfig load_config(const std::string& path, const Overrides& overrides) {
  LoadedConfig loaded;
  loaded.path = path;
  check_paths(path);
  check_is_file(path);

  std::vector<GivenKey> given;
  for (const auto& entry : read_toml(path)) {
    given.push_back(
        {.key = entry.key, .value = entry.value, .is_text = false, .where = entry.where});
    loaded.origins[entry.key] = entry.where;
  }
  for (const auto& [key, name, text] : read_environment()) {
    given.push_back({.key = key,
                     .value = text,
                     .is_text = true,
                     .where = str("environment: ", name, "=", text)});
    loaded.origins[key] = name;
  }
  for (const auto& [key, text] : overrides) {
    given.push_back({.key = key,
                     .value = text,
                     .is_text = true,
                     .where = str("command line: --", key, "=", text)});
    loaded.origins[key] = "command line";
  }

  // Set model.kind first, since the other keys of [model] depend on it. Set the other sections
  // before [model], since they determine whether the model comes from a source of weights. If a key
  // was given several times, its last value counts.
  for (const GivenKey& g : given) {
    // The schema of every kind has the field model.kind.
    if (g.key == "model.kind")
      set_kind(loaded.config, g.read_as(loaded.config.schema().find(g.key)), g.where);
  }
  const auto is_of_model = [](const GivenKey& g) { return g.key.starts_with("model."); };
  std::ranges::stable_partition(given, std::not_fn(is_of_model));

  // Check all keys before reporting an error, so that the message lists all errors.
  std::string errors;
  for (const GivenKey& g : given) {
    if (g.key == "model.kind") continue;
    try {
      set(loaded, g);
    } catch (const Error& e) {
      errors += (errors.empty() ? "" : "\n") + std::string(e.what());
    }
    if (is_of_model(g)) loaded.model_keys.push_back(g);
  }
  if (!errors.empty()) fail(Exit::usage, errors);

  if (loaded.config.train.out_dir.empty())
    loaded.config.train.out_dir = (fs::path("runs") / fs::path(path).stem()).string();
  check_config(loaded);
  loaded.config.schedule.min_lr = end_of_schedule(loaded.config.schedule, loaded.config.optim.lr);
  return loaded;
}

RunConfig config_from_toml(const std::string& text, const std::string& where) {
  RunConfig config;
  try {
    const auto entries = parse_toml(text, where);
    for (const auto& entry : entries) {
      if (entry.key == "model.kind") set_kind(config, entry.value, where);
    }
    for (const auto& entry : entries) {
      const char* renamed_to = new_name(entry.key);
      const std::string key = renamed_to != nullptr ? renamed_to : entry.key;
      if (config.schema().find(key) == nullptr)
        fail(Exit::checkpoint, where, ": a key this build does not have: ", key);
      config.schema().set(&config, key, entry.value, where);
    }
  } catch (const Error& e) {
    fail(Exit::checkpoint, e.what());
  }

  const auto refuse = [&](const std::optional<ConfigFault>& fault) {
    if (fault) fail(Exit::checkpoint, where, ": ", fault->what);
  };
  refuse(find_model_kind(config.model.kind)->check(config.model.own));
  refuse(check_window(config));
  for (const Transform& t : transforms()) {
    if (t.check) refuse(t.check(config));
  }
  for (const TaskKeys& t : task_keys()) {
    if (t.check) refuse(t.check(config));
  }
  return config;
}

}  // namespace lathe
