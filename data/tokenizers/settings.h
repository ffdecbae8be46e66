// What the folder of a model has about its tokenizer beside its definition: the chat template, the
// names of special tokens, and how to generate. No LibTorch header.
#pragma once

#include <string>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Settings that are kept as they came, and written back in exports. They change no id.
struct TokenizerSettings {
  std::string chat_template{};  ///< Jinja; empty: none
  std::string templates{};      ///< JSON: the list, where there are several by name
  bool template_file = false;   ///< it was chat_template.jinja
  bool has_names = false;       ///< the three below are known, and empty where there is none
  std::string bos_token{}, eos_token{}, pad_token{};
  std::string generation_config{};  ///< text of generation_config.json; empty: none

  /// Takes what is missing here from `other`.
  void fill_from(const TokenizerSettings& other);
  bool operator==(const TokenizerSettings&) const = default;
};

/// Reads tokenizer_config.json, special_tokens_map.json, chat_template.jinja and
/// generation_config.json of a folder, each of which may be missing. Throws Exit::data with the
/// file and what is wrong.
TokenizerSettings read_settings(const fs::path& folder);
/// Adds what is set to the object `json`, from which settings_from_json reads it.
void add_settings(Json& json, const TokenizerSettings& settings);
/// Reads what add_settings wrote. Throws Exit::data, beginning with `where`.
TokenizerSettings settings_from_json(const Json& json, const std::string& where);

/// Writes chat_template.jinja and generation_config.json durably into a folder, and the others as
/// keys of its tokenizer_config.json, `config`.
void write_settings(const TokenizerSettings& settings, const fs::path& folder, Json& config);

}  // namespace lathe
