#include "data/tokenizers/settings.h"

#include <algorithm>

#include "core/io/text.h"

namespace lathe {
std::string token_name(const Json& config, const char* key, const std::string& where) {
  if (!config.contains(key) || config[key].is_null()) return "";
  return config[key].is_object() ? json_get<std::string>(config[key], "content", where, Exit::data)
                                 : json_get<std::string>(config, key, where, Exit::data);
}

namespace {

constexpr uint64_t max_settings_bytes = uint64_t{16} << 20;

/// Reads the chat template of a tokenizer_config.json: a text, or a list of texts with names.
void read_template(const Json& config, const std::string& where, TokenizerSettings& s) {
  if (!config.contains("chat_template") || config["chat_template"].is_null()) return;
  const Json& found = config["chat_template"];
  if (!found.is_array()) {
    s.chat_template = json_get<std::string>(config, "chat_template", where, Exit::data);
    return;
  }
  s.templates = json_text(found);
  for (const Json& one : found) {
    const auto name = json_get<std::string>(one, "name", where, Exit::data);
    const auto text = json_get<std::string>(one, "template", where, Exit::data);
    if (name == "default") s.chat_template = text;
  }
}

/// Keys of special tokens that are copied unchanged.
constexpr const char* other_names[]{
    "unk_token",           "sep_token", "cls_token", "mask_token", "additional_special_tokens",
    "extra_special_tokens"};

/// Copies to `to` the values of those keys in other_names that `from` has.
void copy_others(const Json& from, Json& to) {
  for (const char* key : other_names) {
    if (from.contains(key) && !from[key].is_null()) to[key] = from[key];
  }
}

/// Reads the names of special tokens if the object has eos_token.
void read_names(const Json& config, const std::string& where, TokenizerSettings& s) {
  if (!config.contains("eos_token")) return;
  s.has_special_tokens = true;
  s.bos_token = token_name(config, "bos_token", where);
  s.eos_token = token_name(config, "eos_token", where);
  s.pad_token = token_name(config, "pad_token", where);

  Json others = Json::object();
  copy_others(config, others);
  if (!others.empty()) s.other_tokens = json_text(others);
}

/// Returns the integers of eos_token_id, which is an integer or a list of integers. Ignores other
/// values.
std::vector<int64_t> end_ids_of(const Json& config) {
  std::vector<int64_t> ids;
  const auto add = [&](const Json& one) {
    if (one.is_number_integer()) ids.push_back(one.get<int64_t>());
  };
  const Json found = config.value("eos_token_id", Json());
  if (!found.is_array()) add(found);
  for (const Json& one : found.is_array() ? found : Json::array()) add(one);
  return ids;
}

/// Throws Exit::data unless eos_token_id is missing, null, an integer or a list of integers.
void check_end_ids(const Json& config, const std::string& where) {
  const Json found = config.value("eos_token_id", Json());
  const size_t wanted = found.is_null() ? 0 : found.is_array() ? found.size() : 1;
  if (end_ids_of(config).size() != wanted)
    fail(Exit::data, where, ": eos_token_id is not an integer or a list of integers");
}

/// Sets end_ids to the ids that config.json and generation_config.json name. Ignores values that
/// are not integers, because older versions of Lathe saved settings without checking them.
void set_end_ids(TokenizerSettings& s, const std::string& where) {
  s.end_ids = s.config_end_ids;
  if (s.generation_config.empty()) return;
  const Json generation = parse_json(s.generation_config, where, Exit::data);
  if (!generation.is_object()) return;
  const std::vector<int64_t> more = end_ids_of(generation);
  s.end_ids.insert(s.end_ids.end(), more.begin(), more.end());
}

std::string read_text(const fs::path& file) {
  std::string text = read_file(file, Exit::data, max_settings_bytes);
  if (!is_utf8(text)) fail(Exit::data, file.string(), " is not UTF-8");
  return text;
}

}  // namespace

void TokenizerSettings::add_end_id(int64_t id) {
  const auto add = [&](std::vector<int64_t>& ids) {
    if (std::ranges::find(ids, id) == ids.end()) ids.insert(ids.begin(), id);
  };
  if (!config_end_ids.empty()) add(config_end_ids);
  if (!generation_config.empty()) {
    Json generation = parse_json(generation_config, "generation_config.json", Exit::data);
    std::vector<int64_t> ids = end_ids_of(generation);
    const bool is_known = ids.empty() || std::ranges::find(ids, id) != ids.end();
    if (!is_known) {
      add(ids);
      generation["eos_token_id"] = ids;
      generation_config = json_text(generation, 2) + "\n";
    }
  }
  set_end_ids(*this, "generation_config.json");
}

void TokenizerSettings::fill_from(const TokenizerSettings& other) {
  if (chat_template.empty()) {
    chat_template = other.chat_template;
    templates = other.templates;
    from_template_file = other.from_template_file;
  }
  if (!has_special_tokens) {
    has_special_tokens = other.has_special_tokens;
    bos_token = other.bos_token;
    eos_token = other.eos_token;
  }
  if (pad_token.empty()) pad_token = other.pad_token;
  if (other_tokens.empty()) other_tokens = other.other_tokens;
  if (generation_config.empty()) generation_config = other.generation_config;
  if (config_end_ids.empty()) config_end_ids = other.config_end_ids;
  set_end_ids(*this, "generation_config.json");
}

TokenizerSettings read_settings(const fs::path& folder) {
  TokenizerSettings s;
  const fs::path file = folder / "chat_template.jinja",
                 generation = folder / "generation_config.json";
  // In older folders, only special_tokens_map.json has the names of special tokens.
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path config = folder / name;
    if (!fs::exists(config)) continue;
    const std::string where = config.string();
    const Json json = parse_json(read_text(config), where, Exit::data);
    if (!json.is_object()) fail(Exit::data, where, " is not a JSON object");
    if (s.chat_template.empty()) read_template(json, where, s);
    if (!s.has_special_tokens) read_names(json, where, s);
  }

  // As in transformers, chat_template.jinja takes precedence.
  if (fs::exists(file)) {
    s.chat_template = read_text(file);
    s.templates.clear();
    s.from_template_file = true;
  }
  if (fs::exists(generation)) {
    s.generation_config = read_text(generation);
    const Json json = parse_json(s.generation_config, generation.string(), Exit::data);
    if (!json.is_object()) fail(Exit::data, generation.string(), " is not a JSON object");
    check_end_ids(json, generation.string());
  }

  if (const fs::path config = folder / "config.json"; fs::exists(config)) {
    const Json json = parse_json(read_text(config), config.string(), Exit::data);
    if (json.is_object() && json.value("eos_token_id", Json()).is_array()) {
      check_end_ids(json, config.string());
      s.config_end_ids = end_ids_of(json);
    }
  }
  set_end_ids(s, generation.string());
  return s;
}

void add_settings(Json& json, const TokenizerSettings& s) {
  if (s == TokenizerSettings{}) return;
  Json& made = json["settings"] = Json::object();
  if (s.has_special_tokens)
    made["names"] = {{"bos", s.bos_token}, {"eos", s.eos_token}, {"pad", s.pad_token}};
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) made[key] = text;
  };
  add("chat_template", s.chat_template);
  add("templates", s.templates);
  add("other_tokens", s.other_tokens);
  add("generation_config", s.generation_config);
  if (!s.config_end_ids.empty()) made["config_end_ids"] = s.config_end_ids;
  if (s.from_template_file) made["template_file"] = true;
}

TokenizerSettings settings_from_json(const Json& json, const std::string& where) {
  TokenizerSettings s;
  if (!json.contains("settings")) return s;
  const Json& found = json["settings"];
  const auto text = [&](const Json& in, const char* key) {
    return in.contains(key) ? json_get<std::string>(in, key, where, Exit::data) : "";
  };

  s.chat_template = text(found, "chat_template");
  s.templates = text(found, "templates");
  s.generation_config = text(found, "generation_config");
  s.from_template_file =
      found.contains("template_file") && json_get<bool>(found, "template_file", where, Exit::data);

  s.has_special_tokens = found.contains("names");
  if (s.has_special_tokens) {
    const Json& names = found["names"];
    s.bos_token = text(names, "bos");
    s.eos_token = text(names, "eos");
    s.pad_token = text(names, "pad");
  }

  s.other_tokens = text(found, "other_tokens");
  if (found.contains("config_end_ids"))
    s.config_end_ids = json_get<std::vector<int64_t>>(found, "config_end_ids", where, Exit::data);

  // Refuse invalid JSON here, where the message can name the file.
  if (!s.templates.empty()) parse_json(s.templates, where, Exit::data);
  if (!s.other_tokens.empty() && !parse_json(s.other_tokens, where, Exit::data).is_object())
    fail(Exit::data, where, ": other_tokens is not a JSON object");
  set_end_ids(s, where);
  return s;
}

void write_settings(const TokenizerSettings& s, const fs::path& folder, Json& config) {
  if (s.from_template_file) {
    write_file_durably(folder / "chat_template.jinja", s.chat_template);
  } else if (!s.templates.empty()) {
    config["chat_template"] = parse_json(s.templates, "the chat templates", Exit::data);
  } else if (!s.chat_template.empty()) {
    config["chat_template"] = s.chat_template;
  }
  if (!s.other_tokens.empty())
    copy_others(parse_json(s.other_tokens, "the special tokens", Exit::data), config);
  if (!s.generation_config.empty())
    write_file_durably(folder / "generation_config.json", s.generation_config);
}

}  // namespace lathe
