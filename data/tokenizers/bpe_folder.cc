// Reads a BPE tokenizer from a folder: decides which files to read, and applies
// tokenizer_config.json.
#include <algorithm>

#include "core/io/text.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/settings.h"

namespace lathe {
namespace {

constexpr uint64_t most_bytes = uint64_t{256} << 20;  // largest size of a file

/// Returns a file of the folder as a JSON object; an empty object if there is no such file.
Json object_in(const fs::path& folder, const char* name) {
  const fs::path file = folder / name;
  if (!fs::exists(file)) return Json::object();
  const Json json = parse_json(read_file(file, Exit::data, most_bytes), file.string(), Exit::data);
  if (!json.is_object()) fail(Exit::data, file.string(), " is not a JSON object");
  return json;
}

/// Returns the tokenizer's class in tokenizer_config.json without "Fast"; "" if the file names no
/// class.
std::string class_of(const Json& config, const std::string& where) {
  if (!config.contains("tokenizer_class") || config["tokenizer_class"].is_null()) return "";
  auto name = json_get<std::string>(config, "tokenizer_class", where, Exit::data);
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

/// Returns the tokens that were added to a tokenizer of vocab.json and merges.txt.
std::vector<SpecialToken> added_tokens_in(const fs::path& folder, const Json& config,
                                          const std::string& where) {
  std::vector<SpecialToken> added;
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  for (const auto& [id, token] : decoder.items()) {
    if (id.empty() || id.size() > 8 || id.find_first_not_of("0123456789") != std::string::npos ||
        !token.is_object())
      fail(Exit::data, where, ": in added_tokens_decoder, the key \"", id,
           "\" is not an id, or its value is not a token");
    Json numbered = token;
    numbered["id"] = std::stoll(id);
    added.push_back(added_token(numbered, where));
  }

  // Older folders list added tokens in added_tokens.json only. The special ones among these tokens
  // also occur in the config or in special_tokens_map.json.
  const std::string listed = (folder / "added_tokens.json").string();
  const std::string names =
      json_text(config) + json_text(object_in(folder, "special_tokens_map.json"));
  const Json older = object_in(folder, "added_tokens.json");
  for (const auto& [text, id] : older.items()) {
    if (std::ranges::find(added, text, &SpecialToken::text) != added.end()) continue;
    const bool is_named = names.find(json_text(Json(text))) != std::string::npos;
    added.push_back(added_token({{"content", text}, {"id", id}, {"special", is_named}}, listed));
  }
  return added;
}

/// Applies add_bos_token for the classes for which transformers does so. add_bos_token overrides
/// the post-processor.
void apply_add_bos(BPEDefinition& d, const Json& config, const std::string& where, bool is_slow) {
  const std::string name = class_of(config, where);
  const bool counts = (is_slow && name == "GPT2Tokenizer") || name == "LlamaTokenizer" ||
                      name == "CodeLlamaTokenizer" || name == "GemmaTokenizer" ||
                      name == "CohereTokenizer";
  const Json add = config.value("add_bos_token", Json());
  if (!counts || !add.is_boolean()) return;
  if (!add.get<bool>()) {
    d.begin = -1;
  } else if (const int32_t id = special_id(d, token_name(config, "bos_token", where)); id >= 0) {
    d.begin = id;
  }
}

/// Reads vocab.json, merges.txt, and the additional files of transformers' slow tokenizers.
BPEDefinition read_slow(const fs::path& folder, const Json& config, const std::string& where) {
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (!fs::exists(vocab) || !fs::exists(merges))
    fail(Exit::data, folder.string(),
         " has neither a tokenizer.json nor vocab.json and merges.txt");

  const std::string name = class_of(config, where);
  const bool is_qwen2 = name == "Qwen2Tokenizer";
  if (!is_qwen2 && !name.empty() && name != "GPT2Tokenizer" && name != "CodeGenTokenizer") {
    fail(Exit::data, where, ": this build does not know how the class ", name,
         " splits text; save the tokenizer with a tokenizer.json, as its fast class does");
  }
  if (config.value("add_prefix_space", Json(false)) == Json(true))
    fail(Exit::data, where, ": add_prefix_space is not supported by this build");

  BPEDefinition d = bpe_from_gpt2(read_file(vocab, Exit::data, most_bytes),
                                  read_file(merges, Exit::data, most_bytes), vocab.string(),
                                  merges.string(), added_tokens_in(folder, config, where));
  if (is_qwen2) {
    d.patterns = {qwen2_pattern};
    d.nfc = true;
  }
  apply_add_bos(d, config, where, /*is_slow=*/true);
  return d;
}

}  // namespace

BPEDefinition read_bpe(const fs::path& path) {
  if (!fs::exists(path))
    fail(Exit::data, "there is no tokenizer ", path.string(),
         "; give a tokenizer.json, or a folder that has one or vocab.json and merges.txt");
  const bool is_folder = fs::is_directory(path);
  const fs::path file = is_folder ? path / "tokenizer.json" : path;
  const std::string where = (path / "tokenizer_config.json").string();
  const Json config = is_folder ? object_in(path, "tokenizer_config.json") : Json::object();
  if (is_folder && !fs::exists(file)) return read_slow(path, config, where);

  BPEDefinition d =
      bpe_from_json(parse_json(read_file(file, Exit::data, most_bytes), file.string(), Exit::data),
                    file.string());
  for (const std::string& pattern : d.patterns) {
    if (const std::string syntax = differing_syntax(pattern); !syntax.empty())
      fail(Exit::data, file.string(), ": the pre-tokenizer's pattern has ", syntax,
           ", which this build does not read as Hugging Face's tokenizers do");
  }
  apply_add_bos(d, config, where, /*is_slow=*/false);
  return d;
}

}  // namespace lathe
