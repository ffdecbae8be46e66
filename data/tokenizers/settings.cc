#include "data/tokenizers/settings.h"

#include "core/io/text.h"

namespace lathe {
namespace {

constexpr uint64_t most_settings = uint64_t{16} << 20;

/// Returns the text of a special token, which may be in an object; "" where there is none.
std::string token_name(const Json& config, const char* key, const std::string& where) {
  if (!config.contains(key) || config[key].is_null()) return "";
  return config[key].is_object() ? json_get<std::string>(config[key], "content", where, Exit::data)
                                 : json_get<std::string>(config, key, where, Exit::data);
}

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
    if (json_get<std::string>(one, "name", where, Exit::data) == "default")
      s.chat_template = json_get<std::string>(one, "template", where, Exit::data);
  }
}

/// Reads the names of special tokens, where the object has that of the end of texts.
void read_names(const Json& config, const std::string& where, TokenizerSettings& s) {
  if (!config.contains("eos_token")) return;
  s.has_names = true;
  s.bos_token = token_name(config, "bos_token", where);
  s.eos_token = token_name(config, "eos_token", where);
  s.pad_token = token_name(config, "pad_token", where);
}

std::string read_text(const fs::path& file) {
  std::string text = read_file(file, Exit::data, most_settings);
  if (!is_utf8(text)) fail(Exit::data, file.string(), " is not UTF-8");
  return text;
}

}  // namespace

void TokenizerSettings::fill_from(const TokenizerSettings& other) {
  if (chat_template.empty()) {
    chat_template = other.chat_template;
    templates = other.templates;
    template_file = other.template_file;
  }
  if (!has_names) {
    has_names = other.has_names;
    bos_token = other.bos_token, eos_token = other.eos_token, pad_token = other.pad_token;
  }
  if (generation_config.empty()) generation_config = other.generation_config;
}

TokenizerSettings read_settings(const fs::path& folder) {
  TokenizerSettings s;
  const fs::path file = folder / "chat_template.jinja",
                 generation = folder / "generation_config.json";
  // Older folders have the names of tokens in the second file only.
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path config = folder / name;
    if (!fs::exists(config)) continue;
    const std::string where = config.string();
    const Json json = parse_json(read_text(config), where, Exit::data);
    if (!json.is_object()) fail(Exit::data, where, " is not a JSON object");
    if (s.chat_template.empty()) read_template(json, where, s);
    if (!s.has_names) read_names(json, where, s);
  }

  // transformers prefers the file.
  if (fs::exists(file)) {
    s.chat_template = read_text(file), s.templates.clear();
    s.template_file = true;
  }
  if (fs::exists(generation)) {
    s.generation_config = read_text(generation);
    if (!parse_json(s.generation_config, generation.string(), Exit::data).is_object())
      fail(Exit::data, generation.string(), " is not a JSON object");
  }
  return s;
}

void add_settings(Json& json, const TokenizerSettings& s) {
  if (s == TokenizerSettings{}) return;
  Json& made = json["settings"] = Json::object();
  if (s.has_names)
    made["names"] = {{"bos", s.bos_token}, {"eos", s.eos_token}, {"pad", s.pad_token}};
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) made[key] = text;
  };
  add("chat_template", s.chat_template);
  add("templates", s.templates);
  add("generation_config", s.generation_config);
  if (s.template_file) made["template_file"] = true;
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
  s.template_file =
      found.contains("template_file") && json_get<bool>(found, "template_file", where, Exit::data);
  s.has_names = found.contains("names");
  if (s.has_names) {
    const Json& names = found["names"];
    s.bos_token = text(names, "bos"), s.eos_token = text(names, "eos");
    s.pad_token = text(names, "pad");
  }
  if (!s.templates.empty()) parse_json(s.templates, where, Exit::data);
  return s;
}

void write_settings(const TokenizerSettings& s, const fs::path& folder, Json& config) {
  if (s.template_file) {
    write_file_durably(folder / "chat_template.jinja", s.chat_template);
  } else if (!s.templates.empty()) {
    config["chat_template"] = parse_json(s.templates, "the chat templates", Exit::data);
  } else if (!s.chat_template.empty()) {
    config["chat_template"] = s.chat_template;
  }
  if (!s.generation_config.empty())
    write_file_durably(folder / "generation_config.json", s.generation_config);
}

}  // namespace lathe
