#include "train/formats/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/io/log.h"
#include "core/io/text.h"

namespace lathe {
namespace {

/// The values of llama.cpp's token types.
enum : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// A way of splitting text before merges (a pre-tokenizer).
struct Splits {
  const char* name;  ///< the name in llama.cpp
  std::vector<std::string> patterns;
  bool whole_pieces = false;  ///< ignore_merges of tokenizer.json; llama.cpp infers this setting
                              ///< from `name`
  bool nfc = false;  ///< whether tokenizers of this name normalize text to NFC, for which GGUF has
                     ///< no key
};

/// Returns all known ways of splitting text. If several names have the same patterns, an export
/// writes the first of these names.
const std::vector<Splits>& all_pre_tokenizers() {
  // The columns are name, patterns, whole_pieces and nfc.
  static const std::vector<Splits> all{{"gpt-2", {gpt2_pattern}},
                                       {"llama-bpe", {llama3_pattern}, true},
                                       {"llama3", {llama3_pattern}, true},
                                       {"llama-v3", {llama3_pattern}, true},
                                       {"qwen2", {qwen2_pattern}, false, true},
                                       {"deepseek-r1-qwen", {qwen2_pattern}, false, true},
                                       {"smollm", {"\\p{N}", gpt2_pattern}}};
  return all;
}

/// Returns the name of the tokenizer's way to split text. Warns if readers of this name treat text
/// differently in another way, which the file can't state.
std::string pre_tokenizer_name(const BPEDefinition& d) {
  const auto found = std::ranges::find(all_pre_tokenizers(), d.patterns, &Splits::patterns);
  if (found != all_pre_tokenizers().end()) {
    const auto warn = [&](const char* what, bool is, bool read) {
      if (is == read) return;
      log_warn("GGUF can't store that the tokenizer ", is ? "" : "does not ", what,
               "; a reader of the file will ", read ? "" : "not ",
               "do so, and may encode some texts differently");
    };
    warn("normalize text to NFC", d.nfc, found->nfc);
    warn("keep words that are tokens whole, without merges (ignore_merges)", d.whole_pieces,
         found->whole_pieces);
    return found->name;
  }
  fail(Exit::usage, "GGUF has no name for the tokenizer's way to split text (", d.patterns.front(),
       "); it has names only for the ways of GPT-2, Llama 3, Qwen 2 and SmolLM");
}

/// Returns the scores of all tokens, as SentencePiece stores them. llama.cpp merges the pair whose
/// token has the highest score first, so earlier merges have higher scores.
std::vector<float> scores_of(const BPEDefinition& d, size_t tokens) {
  std::vector<float> scores(tokens, 0);
  std::map<std::string_view, size_t> places;
  for (size_t id = 0; id < d.tokens.size(); ++id) places[d.tokens[id]] = id;
  for (const SpecialToken& s : d.special) {
    if (const auto found = places.find(s.text);
        found != places.end() && std::cmp_equal(found->second, s.id))
      places.erase(found);
  }

  // Number only the first merge that makes each token, so that a file that Lathe wrote has the same
  // scores after it is imported and exported again.
  float made = 0;
  for (const auto& [a, b] : d.merges) {
    const auto found =
        places.find(d.tokens[static_cast<size_t>(a)] + d.tokens[static_cast<size_t>(b)]);
    if (found == places.end() || scores[found->second] != 0) continue;
    scores[found->second] = -++made;
  }
  return scores;
}

/// Reads the tokenizer.* keys of a file. If a value is missing or invalid, throws Exit::data with
/// the file and the key.
class TokenizerKeys {
 public:
  explicit TokenizerKeys(const GGUFFile& file) : file_(file), where_(file.path().string()) {}

  const std::string& where() const { return where_; }
  /// Returns the value of "tokenizer." + `key`, or null if the file has no such key.
  const Json* find(const std::string& key) const { return file_.find_value("tokenizer." + key); }
  template <class T>
  T get(const std::string& key, const T& otherwise) const {
    return find(key) == nullptr ? otherwise : get<T>(key);
  }
  template <class T>
  T get(const std::string& key) const {
    const Json* value = find(key);
    try {
      if (value != nullptr) return value->get<T>();
    } catch (const nlohmann::json::exception&) {
    }
    fail(Exit::data, where_, ": tokenizer.", key, " is missing or of the wrong type");
  }
  /// Returns the token id that a key holds, or -1 if the key is absent.
  int32_t id(const std::string& key, size_t tokens) const {
    if (find(key) == nullptr) return -1;
    const auto value = get<int64_t>(key);
    if (value < 0 || std::cmp_greater_equal(value, tokens))
      fail(Exit::data, where_, ": tokenizer.", key, " = ", value, ", but there are only ", tokens,
           " tokens");
    return static_cast<int32_t>(value);
  }

 private:
  const GGUFFile& file_;
  std::string where_;
};

/// Returns the merges that SentencePiece's scores imply: each pair of tokens whose concatenation is
/// a token. Pairs whose concatenation has a higher score come first. Among equal scores, pairs with
/// the longer left token come first, as in transformers' conversion.
Json merges_of(const std::vector<std::string>& tokens, const std::vector<bool>& merged,
               const std::vector<float>& scores, const std::string& where) {
  // The time to find a token's merges is quadratic in the token's length, so that length is
  // limited.
  constexpr size_t most_bytes = 256;

  struct Merge {
    float score;
    size_t left_characters, right_characters, id, cut;
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (merged[id]) ids[tokens[id]] = id;
  }

  std::vector<Merge> merges;
  for (const auto& [token, id] : ids) {
    if (token.size() > most_bytes)
      fail(Exit::data, where, ": the token ", id, " has ", token.size(),
           " bytes; this build merges up to ", most_bytes);
    size_t characters = 0;
    std::vector<size_t> cuts;
    for (size_t at = 0; at < token.size(); ++characters) {
      at += std::max<size_t>(1, code_point_length(token, at));
      if (at < token.size()) cuts.push_back(at);
    }
    for (size_t i = 0; i < cuts.size(); ++i) {
      if (ids.contains(token.substr(0, cuts[i])) && ids.contains(token.substr(cuts[i])))
        merges.push_back({.score = scores[id],
                          .left_characters = i + 1,
                          .right_characters = characters - i - 1,
                          .id = id,
                          .cut = cuts[i]});
    }
  }
  std::ranges::sort(merges, [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, b.left_characters, b.right_characters, a.id) <
           std::tuple(-b.score, a.left_characters, a.right_characters, b.id);
  });

  Json json = Json::array();
  for (const Merge& m : merges)
    json.push_back({tokens[m.id].substr(0, m.cut), tokens[m.id].substr(m.cut)});
  return json;
}

/// Returns SentencePiece's normalizer in the form of tokenizer.json.
Json normalizer_of(bool space_before) {
  Json steps = Json::array();
  if (space_before) steps.push_back({{"type", "Prepend"}, {"prepend", space_mark}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space_mark}});
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

/// Adds the pre-tokenizer in the form of tokenizer.json. Returns the default of the key
/// add_bos_token: whether texts begin with the BOS token.
bool add_pre_tokenizer(const TokenizerKeys& keys, Json& json) {
  const auto name = keys.get<std::string>("ggml.pre", "default");
  const auto splits = std::ranges::find(all_pre_tokenizers(), name, &Splits::name);
  if (splits == all_pre_tokenizers().end()) {
    std::string names;
    for (const Splits& known : all_pre_tokenizers())
      names += (names.empty() ? "" : ", ") + str(known.name);
    fail(Exit::data, keys.where(), ": tokenizer.ggml.pre = ", name,
         " is not supported by this build; it supports ", names);
  }

  Json steps = Json::array();
  for (const std::string& pattern : splits->patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  json["normalizer"] = splits->nfc ? Json{{"type", "NFC"}} : Json(nullptr);
  json["model"]["ignore_merges"] = splits->whole_pieces;
  return splits->whole_pieces;  // llama.cpp's default adds BOS only for Llama 3's tokenizers
}

/// If texts begin with the BOS token according to the file, adds the rule of tokenizer.json that
/// puts this token before each text. `begins`: the default of the key add_bos_token.
void add_bos(const TokenizerKeys& keys, const std::vector<std::string>& tokens, bool begins,
             Json& json) {
  const int32_t first = keys.id("ggml.bos_token_id", tokens.size());
  if (keys.get("ggml.add_bos_token", begins && first >= 0)) {
    if (first < 0)
      fail(Exit::data, keys.where(),
           ": tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
    json["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         Json::array({{{"SpecialToken", {{"id", tokens[static_cast<size_t>(first)]}}}}})}};
  }
}

/// Adds the default chat template and the named chat templates, under llama.cpp's keys.
void add_chat_templates(const TokenizerSettings& settings, GGUFMetadata& metadata) {
  constexpr const char* key = "tokenizer.chat_template";
  if (!settings.chat_template.empty()) metadata.emplace_back(key, settings.chat_template);
  if (settings.templates.empty()) return;

  std::vector<std::string> names;
  const std::string where = "the chat templates";
  for (const Json& one : parse_json(settings.templates, where, Exit::data)) {
    const auto name = json_get<std::string>(one, "name", where, Exit::data);
    if (name == "default" || std::ranges::find(names, name) != names.end()) continue;
    names.push_back(name);
    metadata.emplace_back(str(key, ".", name),
                          json_get<std::string>(one, "template", where, Exit::data));
  }
  if (!names.empty()) metadata.emplace_back("tokenizer.chat_templates", names);
}

}  // namespace

void add_gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size, GGUFMetadata& metadata) {
  const BPEDefinition& d = tokenizer.bpe()->definition();
  const bool of_characters = !d.byte_tokens.empty();
  if (of_characters && !d.patterns.empty())
    fail(Exit::usage,
         "GGUF has no name for the tokenizer's way to split text (SentencePiece's, at each space)");

  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  // GGUF has a token for each id of the model, whose vocabulary may be larger than the tokenizer's.
  for (int64_t id = 0; id < vocab_size; ++id) {
    const bool there = id < std::ssize(d.tokens) && !d.tokens[static_cast<size_t>(id)].empty();
    tokens.push_back(there ? printed_token(d, static_cast<size_t>(id)) : str("[PAD", id, "]"));
    types.push_back(there ? normal : unused);
  }

  for (const int32_t id : d.byte_tokens) types[static_cast<size_t>(id)] = byte;
  for (const SpecialToken& s : d.special) {
    tokens[static_cast<size_t>(s.id)] = s.text;
    types[static_cast<size_t>(s.id)] = of_characters && s.text == "<unk>" ? unknown
                                       : s.special                        ? control
                                                                          : user_defined;
    if (s.text == "<unk>")
      metadata.emplace_back("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(s.id));
  }

  metadata.emplace_back("tokenizer.ggml.model", std::string(of_characters ? "llama" : "gpt2"));
  metadata.emplace_back("tokenizer.ggml.pre", of_characters ? "default" : pre_tokenizer_name(d));
  metadata.emplace_back("tokenizer.ggml.tokens", tokens);
  metadata.emplace_back("tokenizer.ggml.token_type", types);

  if (of_characters) {
    metadata.emplace_back("tokenizer.ggml.scores", scores_of(d, tokens.size()));
    metadata.emplace_back("tokenizer.ggml.add_space_prefix", d.space_before != SpaceBefore::none);
  } else {
    for (const auto& [a, b] : d.merges)
      merges.push_back(tokens[static_cast<size_t>(a)] + " " + tokens[static_cast<size_t>(b)]);
    metadata.emplace_back("tokenizer.ggml.merges", merges);
  }

  BoundaryTokens marks = tokenizer.marks();
  // The settings may name another token than the one that texts begin with.
  if (d.begin >= 0) marks.begin = d.begin;
  // If a file names no token that ends texts, llama.cpp ends a text at token 11 of a byte-level
  // BPE.
  if (marks.end < 0) marks.end = marks.turn_end;
  if (marks.end < 0 && !of_characters) {
    log_warn("the tokenizer has no token that ends texts, so llama.cpp stops at token 11, ", "\"",
             printable_line(std::ssize(tokens) > 11 ? tokens[11] : ""),
             "\", unless its option --ignore-eos is given");
  }
  for (const auto& [key, id] : {std::pair("bos", marks.begin),
                                {"eos", marks.end},
                                {"eot", marks.turn_end},
                                {"padding", marks.pad}})
    if (id >= 0)
      metadata.emplace_back(str("tokenizer.ggml.", key, "_token_id"), static_cast<uint32_t>(id));
  metadata.emplace_back("tokenizer.ggml.add_bos_token", d.begin >= 0);
  add_chat_templates(tokenizer.settings(), metadata);
}

Tokenizer read_gguf_tokenizer(const GGUFFile& file) {
  const TokenizerKeys keys(file);
  const std::string& where = keys.where();
  const auto model = keys.get<std::string>("ggml.model", "none");
  if (model != "gpt2" && model != "llama") {
    fail(Exit::data, where, ": tokenizer.ggml.model = ", model,
         ", but this build reads only gpt2 (a byte-level BPE) and llama (SentencePiece's BPE)");
  }
  const bool of_characters = model == "llama";
  const auto tokens = keys.get<std::vector<std::string>>("ggml.tokens");
  const auto types = keys.get<std::vector<int32_t>>("ggml.token_type");
  if (types.size() != tokens.size())
    fail(Exit::data, where, ": there are ", tokens.size(), " tokens, but ", types.size(), " types");

  Json json = Json::object(), vocab = Json::object(), added = Json::array();
  std::vector<bool> merged(tokens.size());
  std::unordered_map<std::string_view, size_t> places;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == unused) continue;  // the id does not occur in texts
    const auto [place, is_new] = places.emplace(tokens[id], id);
    if (!is_new)
      fail(Exit::data, where, ": ids ", place->second, " and ", id, " are the same token \"",
           tokens[id], "\"");
    // The tokens are unique, so append; vocab[token] would search all earlier tokens.
    vocab.get_ref<Json::object_t&>().emplace_back(tokens[id], id);
    merged[id] = types[id] == normal;
    if (types[id] == unknown || types[id] == control || types[id] == user_defined)
      added.push_back(
          {{"id", id}, {"content", tokens[id]}, {"special", types[id] != user_defined}});
  }

  json["model"] = {{"type", "BPE"}, {"byte_fallback", of_characters}};
  bool begins = of_characters;
  if (of_characters) {
    const auto scores = keys.get<std::vector<float>>("ggml.scores");
    if (scores.size() != tokens.size())
      fail(Exit::data, where, ": there are ", tokens.size(), " tokens, but ", scores.size(),
           " scores");
    if (std::ranges::any_of(scores, [](float x) { return !std::isfinite(x); }))
      fail(Exit::data, where, ": tokenizer.ggml.scores has a score that is not finite");
    json["normalizer"] = normalizer_of(keys.get("ggml.add_space_prefix", true));
    json["model"]["merges"] = merges_of(tokens, merged, scores, where);
  } else {
    begins = add_pre_tokenizer(keys, json);
    json["model"]["merges"] = keys.get<Json>("ggml.merges");
  }
  json["model"]["vocab"] = std::move(vocab);
  json["added_tokens"] = std::move(added);

  add_bos(keys, tokens, begins, json);

  Json whole{{"kind", "bpe"}, {"bpe", std::move(json)}};
  Tokenizer tokenizer = Tokenizer::from_json(whole, "kind", where);
  tokenizer.set_settings(read_gguf_settings(file));
  return tokenizer;
}

TokenizerSettings read_gguf_settings(const GGUFFile& file) {
  const TokenizerKeys keys(file);
  const auto tokens = keys.get<std::vector<std::string>>("ggml.tokens", {});

  TokenizerSettings s;
  s.has_special_tokens = true;
  const auto name = [&](const char* key) {
    const int32_t id = keys.id(str("ggml.", key, "_token_id"), tokens.size());
    return id < 0 ? "" : tokens[static_cast<size_t>(id)];
  };
  s.bos_token = name("bos");
  s.eos_token = name("eos");
  s.pad_token = name("padding");

  const auto text = [&](const std::string& key) {
    auto found = keys.get<std::string>(key.c_str(), "");
    if (!is_utf8(found)) fail(Exit::data, keys.where(), ": tokenizer.", key, " is not UTF-8");
    return found;
  };
  s.chat_template = text("chat_template");

  Json named = Json::array();
  for (const std::string& of : keys.get<std::vector<std::string>>("chat_templates", {})) {
    if (!is_utf8(of)) fail(Exit::data, keys.where(), ": tokenizer.chat_templates is not UTF-8");
    if (of != "default") named.push_back({{"name", of}, {"template", text("chat_template." + of)}});
  }

  if (named.empty()) return s;
  if (!s.chat_template.empty())
    named.insert(named.begin(), Json{{"name", "default"}, {"template", s.chat_template}});
  s.templates = json_text(named);
  return s;
}

}  // namespace lathe
