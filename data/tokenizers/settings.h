// Reads and writes the settings that accompany a tokenizer in a model's folder: the chat template,
// the names of special tokens, and generation_config.json. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Settings that Lathe keeps and writes to exports. They do not change token ids.
struct TokenizerSettings {
  std::string chat_template{};      ///< chat template in Jinja; empty: none
  std::string templates{};          ///< JSON: the list of named templates; empty: there is no list
  bool from_template_file = false;  ///< whether the template was read from chat_template.jinja
  bool has_special_tokens = false;  ///< whether bos_token, eos_token and pad_token are known
  /// The texts of special tokens. If has_special_tokens is true, an empty text means that the
  /// tokenizer does not have the token.
  std::string bos_token{}, eos_token{}, pad_token{};
  /// JSON: an object with the other special tokens of tokenizer_config.json, such as unk_token and
  /// additional_special_tokens; empty: none.
  std::string other_tokens{};
  std::string generation_config{};        ///< text of generation_config.json; empty: none
  std::vector<int64_t> config_end_ids{};  ///< eos_token_id of config.json if it is a list
  /// The ids that end a text, from generation_config.json and config.json together.
  std::vector<int64_t> end_ids{};

  /// Adds the id to config_end_ids and to the end ids (eos_token_id) of generation_config. Does not
  /// change config_end_ids if it is empty, nor generation_config if it has no end ids.
  void add_end_id(int64_t id);
  /// Copies from `other` each setting that is missing in this object.
  void fill_from(const TokenizerSettings& other);
  bool operator==(const TokenizerSettings&) const = default;
};

/// Returns the text of the special token `key` in a tokenizer_config.json; "" if the key is missing
/// or null. The value may be a text or an object with "content". For any other value, throws
/// Exit::data with a message that begins with `where`.
std::string token_name(const Json& config, const char* key, const std::string& where);
/// Reads tokenizer_config.json, special_tokens_map.json, chat_template.jinja,
/// generation_config.json and config.json of a folder, each of which may be missing. Throws
/// Exit::data for a malformed file; the message names the file.
TokenizerSettings read_settings(const fs::path& folder);
/// Adds the settings that are not empty to the object `json`.
void add_settings(Json& json, const TokenizerSettings& settings);
/// Returns the settings that add_settings has added to `json`. Throws Exit::data if they are
/// malformed; the message begins with `where`.
TokenizerSettings settings_from_json(const Json& json, const std::string& where);

/// Writes generation_config.json durably to a folder. If the chat template was read from
/// chat_template.jinja, also writes that file. Otherwise, adds the template or the list of
/// templates to `config`, the contents of the folder's tokenizer_config.json. Also adds
/// `other_tokens` to `config`. The caller must write bos_token, eos_token, pad_token and
/// config_end_ids.
void write_settings(const TokenizerSettings& settings, const fs::path& folder, Json& config);

}  // namespace lathe
