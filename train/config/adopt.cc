// Sets the keys of [model] from the run or folder that the weights come from.
#include "core/error.h"
#include "train/config/check_config.h"
#include "train/config/run_config.h"

namespace lathe {

ConfigValue GivenKey::read_as(const Field* field) const {
  const std::string* text = std::get_if<std::string>(&value);
  return is_text && field != nullptr && text != nullptr ? read_value(*text, field->initial) : value;
}

LoadedConfig adopt_model(LoadedConfig loaded, const ModelConfig& from,
                         const std::string& named_by) {
  RunConfig& c = loaded.config;
  const auto refuse = [&](const std::string& key, const ConfigValue& ours,
                          const ConfigValue& theirs) {
    fail(Exit::usage, origin_of(loaded, key), ": ", key, " = ", toml_text(ours), ", but ", named_by,
         " has ", toml_text(theirs), "; leave it out",
         key == "model.block_size" ? ", or train on shorter windows with data.window" : "");
  };
  if (loaded.origins.contains("model.kind") && c.model.kind != from.kind)
    refuse("model.kind", c.model.kind, from.kind);

  RunConfig source, given;
  source.model = given.model = from;
  const Schema& keys = source.schema();
  const auto value = [&](const RunConfig& config, const Field& f) { return keys.get(&config, f); };

  // Dropout is not part of the weights, so keep the value of the config.
  const Field* dropout = keys.find("model.dropout");
  if (dropout != nullptr) {
    const bool is_own = c.model.kind == from.kind;
    keys.set(&source, dropout->key, is_own ? value(c, *dropout) : dropout->initial, named_by);
  }

  // If a key was given several times, only its last value counts.
  for (const GivenKey& g : loaded.model_keys) {
    const Field* f = keys.find(g.key);
    if (f == nullptr) {
      fail(Exit::usage, g.where, ": ", g.key, " is not a key of model.kind = \"", from.kind,
           "\", the kind of ", named_by, "; leave it out");
    }
    keys.set(&given, g.key, g.read_as(f), g.where);
  }

  for (const GivenKey& g : loaded.model_keys) {
    const Field* f = keys.find(g.key);
    const ConfigValue ours = value(given, *f), theirs = value(source, *f);
    const bool from_data = g.key == "model.vocab_size" && ours == ConfigValue(int64_t{0});
    if (f == dropout)
      keys.set(&source, g.key, ours, g.where);
    else if (ours != theirs && !from_data)
      refuse(g.key, ours, theirs);
  }
  c.model = source.model;

  if (const auto fault = check_window(c))
    fail(Exit::usage, origin_of(loaded, "data.window"), ": ", fault->what);
  check_transforms(loaded, /*has_model=*/true);
  return loaded;
}

}  // namespace lathe
