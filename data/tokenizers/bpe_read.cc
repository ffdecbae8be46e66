// Reads BPE tokenizers: GPT-2's vocab.json and merges.txt, and Hugging Face's tokenizer.json.
#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "core/io/text.h"
#include "data/tokenizers/bpe.h"

namespace lathe {
namespace {

/// Returns the bytes of a token in GPT-2's alphabet; nullopt if the token has any other character.
std::optional<std::string> bytes_of(std::string_view token) {
  static const std::map<std::string, char, std::less<>> of = [] {
    std::map<std::string, char, std::less<>> made;
    for (int b = 0; b < 256; ++b)
      made[byte_alphabet()[static_cast<size_t>(b)]] = static_cast<char>(b);
    return made;
  }();
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const size_t n = code_point_length(token, at);
    const auto found = n == 0 ? of.end() : of.find(token.substr(at, n));
    if (found == of.end()) return std::nullopt;
    out += found->second;
    at += n;
  }
  return out;
}

[[noreturn]] void unknown(const std::string& where, const std::string& what) {
  fail(Exit::data, where, ": ", what,
       " is not supported; this build reads byte-level BPE tokenizers, and SentencePiece's with "
       "byte_fallback");
}

/// Returns whether a key is missing or null.
bool is_absent(const Json& json, const char* key) {
  return !json.contains(key) || json.at(key).is_null();
}
bool flag(const Json& json, const char* key, bool otherwise, const std::string& where) {
  return is_absent(json, key) ? otherwise : json_get<bool>(json, key, where, Exit::data);
}
std::string type_of(const Json& json, const std::string& where) {
  return json_get<std::string>(json, "type", where, Exit::data);
}

/// Returns the parts of a "Sequence", or the object itself for any other type.
std::vector<Json> parts_of(const Json& json, const char* list, const std::string& where) {
  if (type_of(json, where) != "Sequence") return {json};
  return json_get<std::vector<Json>>(json, list, where, Exit::data);
}

void read_normalizer(const Json& json, BPEDefinition& d, const std::string& where) {
  for (const Json& part : parts_of(json, "normalizers", where)) {
    if (type_of(part, where) != "NFC") unknown(where, "the normalizer " + type_of(part, where));
    d.nfc = true;
  }
}

void read_pretokenizer(const Json& json, BPEDefinition& d, const std::string& where) {
  bool bytes = false;
  d.patterns.clear();

  for (const Json& part : parts_of(json, "pretokenizers", where)) {
    const std::string type = type_of(part, where);
    // A later pattern would have to match GPT-2's alphabet, to which ByteLevel converts the text.
    if (bytes) unknown(where, "a pre-tokenizer after ByteLevel");
    if (type == "ByteLevel") {
      bytes = true;
      if (flag(part, "add_prefix_space", true, where))
        unknown(where, "the pre-tokenizer's add_prefix_space");
      if (flag(part, "use_regex", true, where)) d.patterns.emplace_back(gpt2_pattern);
    } else if (type == "Digits") {
      d.patterns.emplace_back(flag(part, "individual_digits", false, where) ? "\\p{N}" : "\\p{N}+");
    } else if (type == "Split") {
      const auto behavior = json_get<std::string>(part, "behavior", where, Exit::data);
      const bool invert = flag(part, "invert", false, where);
      // Only these two combinations make each match a piece.
      if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert))
        unknown(where, "the pre-tokenizer's Split with " + behavior + (invert ? ", inverted" : ""));
      const auto pattern = json_get<Json>(part, "pattern", where, Exit::data);
      d.patterns.push_back(
          pattern.contains("Regex")
              ? json_get<std::string>(pattern, "Regex", where, Exit::data)
              : literal_pattern(json_get<std::string>(pattern, "String", where, Exit::data),
                                where));
    } else {
      unknown(where, "the pre-tokenizer " + type);
    }
  }
  if (!bytes) unknown(where, "a pre-tokenizer without ByteLevel");
  // If there is no pattern, the complete text is one piece.
  if (d.patterns.empty()) d.patterns.emplace_back("[\\s\\S]+");
}

/// Reads the normalizer and the pre-tokenizer of SentencePiece's form. They replace spaces by
/// U+2581, and may put a space before a text.
void read_sentencepiece(const Json& json, BPEDefinition& d, const std::string& where) {
  d.patterns.clear();
  bool marked = false;

  const auto has_mark = [&](const Json& part, const char* key) {
    if (json_get<std::string>(part, key, where, Exit::data) != space_mark)
      unknown(where, type_of(part, where) + " with another " + key + " than U+2581");
  };

  if (!is_absent(json, "normalizer")) {
    for (const Json& part : parts_of(json["normalizer"], "normalizers", where)) {
      const std::string type = type_of(part, where);
      if (type == "Prepend" && !marked) {
        has_mark(part, "prepend");
        d.space_before = SpaceBefore::each;
      } else if (type == "Replace" && part.value("pattern", Json()) == Json{{"String", " "}}) {
        has_mark(part, "content");
        marked = true;
      } else {
        unknown(where, "the normalizer " + type);
      }
    }
  }

  // Gemma's pre-tokenizer splits at spaces. This has no effect, since the normalizer replaces all
  // spaces.
  const auto splits_at_spaces = [&](const Json& part) {
    return type_of(part, where) == "Split" &&
           part.value("pattern", Json()) == Json{{"String", " "}};
  };
  if (!is_absent(json, "pre_tokenizer") && !(marked && splits_at_spaces(json["pre_tokenizer"]))) {
    const Json& part = json["pre_tokenizer"];
    if (const std::string type = type_of(part, where); type != "Metaspace")
      unknown(where, "byte_fallback with the pre-tokenizer " + type);
    has_mark(part, "replacement");
    marked = true;
    std::string scheme;
    if (!is_absent(part, "prepend_scheme"))
      scheme = json_get<std::string>(part, "prepend_scheme", where, Exit::data);
    else  // older files have add_prefix_space instead
      scheme = flag(part, "add_prefix_space", true, where) ? "always" : "never";

    const std::map<std::string, SpaceBefore> known{{"never", SpaceBefore::none},
                                                   {"always", SpaceBefore::each_without},
                                                   {"first", SpaceBefore::first_without}};
    if (!known.contains(scheme) || (scheme != "never" && d.space_before != SpaceBefore::none))
      unknown(where, "the pre-tokenizer's prepend_scheme " + scheme);
    if (scheme != "never") d.space_before = known.at(scheme);
    if (flag(part, "split", true, where)) d.patterns.emplace_back(metaspace_pattern);
  }

  if (!marked) unknown(where, "byte_fallback without spaces that become U+2581");
}

/// Returns the bytes of a token of SentencePiece's vocabulary. For a byte token, such as <0x0A>,
/// these are one byte, and d.byte_tokens is set.
std::string read_text_token(const std::string& token, int32_t id, BPEDefinition& d,
                            const std::string& where) {
  if (token.size() == 6 && token.starts_with("<0x")) {
    for (size_t byte = 0; byte < 256; ++byte) {
      if (token != printed_byte(byte)) continue;
      d.byte_tokens[byte] = id;
      return std::string(1, static_cast<char>(byte));
    }
  }
  if (token.find(' ') != std::string::npos)
    fail(Exit::data, where, ": the token \"", token,
         "\" has a space, which is U+2581 in this form");
  return replace_all(token, space_mark, " ");
}

/// Fills d.tokens from a vocabulary {"token": id} and d.special. Returns the ids by the tokens'
/// texts in `vocab`. In SentencePiece's form, d.byte_tokens must have 256 elements; this function
/// sets their values.
std::map<std::string, int32_t> read_vocabulary(const Json& vocab, BPEDefinition& d,
                                               const std::string& where) {
  if (!vocab.is_object())
    fail(Exit::data, where, ": the vocabulary must be an object of tokens and their ids");

  // Gemma's files list runs of spaces as added tokens, although merges make the same tokens.
  if (!d.byte_tokens.empty()) {
    std::erase_if(d.special, [&](const SpecialToken& s) {
      return !s.special && vocab.contains(s.text) && replace_all(s.text, space_mark, "").empty();
    });
  }

  std::map<std::string, int32_t> ids;
  int64_t largest = -1;
  // Added tokens need not be in the vocabulary.
  for (const auto& s : d.special) largest = std::max<int64_t>(largest, s.id);
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > 99'999'999)
      fail(Exit::data, where, ": the id of \"", token,
           "\" must be a whole number from 0 to 99999999");
    ids[token] = static_cast<int32_t>(id.get<int64_t>());
    largest = std::max(largest, id.get<int64_t>());
  }

  // Some vocabularies have gaps between ids, but a single huge id would take gigabytes of memory.
  const int64_t most = 4 * static_cast<int64_t>(ids.size() + d.special.size()) + 100'000;
  if (largest > most)
    fail(Exit::data, where, ": there are ", ids.size() + d.special.size(),
         " tokens, and one has the id ", largest, "; ids may go up to ", most);

  d.tokens.assign(static_cast<size_t>(largest + 1), "");
  for (const auto& s : d.special) d.tokens[static_cast<size_t>(s.id)] = s.text;
  std::vector<bool> is_special(d.tokens.size());
  for (const auto& s : d.special) is_special[static_cast<size_t>(s.id)] = true;

  for (const auto& [token, id] : ids) {
    std::string& place = d.tokens[static_cast<size_t>(id)];
    // The text of a special token is not written in GPT-2's alphabet.
    if (is_special[static_cast<size_t>(id)] && place == token) continue;
    const auto bytes =
        d.byte_tokens.empty() ? bytes_of(token) : read_text_token(token, id, d, where);
    if (!bytes || bytes->empty())
      fail(Exit::data, where, ": the token \"", token,
           "\" is not a sequence of bytes in GPT-2's alphabet");
    if (!place.empty())
      fail(Exit::data, where, ": the id ", id, " is given to two tokens, one of them \"", token,
           "\"");
    place = *bytes;
  }

  // Gemma 1 and 2 have a token for the tab character instead of <0x09>.
  for (size_t byte = 0; byte < std::min<size_t>(d.byte_tokens.size(), 128); ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    if (d.byte_tokens[byte] < 0 && found != ids.end()) d.byte_tokens[byte] = found->second;
  }
  const auto absent = std::ranges::find(d.byte_tokens, -1);
  if (absent != d.byte_tokens.end())
    unknown(where,
            "byte_fallback without the token " +
                printed_byte(static_cast<size_t>(std::distance(d.byte_tokens.begin(), absent))));
  return ids;
}

void add_merge(const std::map<std::string, int32_t>& ids, const std::string& a,
               const std::string& b, BPEDefinition& d, const std::string& where) {
  const auto left = ids.find(a), right = ids.find(b);
  if (left == ids.end() || right == ids.end()) {
    fail(Exit::data, where, ": the merge of \"", a, "\" and \"", b,
         "\" names a token that the vocabulary lacks: \"", left == ids.end() ? a : b, "\"");
  }
  d.merges.emplace_back(left->second, right->second);
}

/// Adds a merge from a line "a b".
void add_merge_line(const std::map<std::string, int32_t>& ids, const std::string& line,
                    BPEDefinition& d, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
    fail(Exit::data, where, ": a merge must be two tokens with a space between, not \"", line,
         "\"");
  add_merge(ids, line.substr(0, space), line.substr(space + 1), d, where);
}

}  // namespace

BPEDefinition bpe_from_gpt2(const std::string& vocabulary, const std::string& merges,
                            const std::string& vocabulary_name, const std::string& merges_name,
                            std::vector<SpecialToken> added) {
  BPEDefinition d;
  d.special = std::move(added);
  const auto ids =
      read_vocabulary(parse_json(vocabulary, vocabulary_name, Exit::data), d, vocabulary_name);

  std::istringstream lines(merges);
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    // Only the first line may be a version; a later line that looks like a version is a merge.
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (first && line.starts_with("#version"))) continue;
    add_merge_line(ids, line, d, merges_name);
  }

  // A token that is neither a byte nor the result of a merge is a special token.
  std::vector<bool> made(d.tokens.size());
  std::map<std::string_view, size_t> places;
  for (size_t id = 0; id < d.tokens.size(); ++id) places[d.tokens[id]] = id;
  for (const auto& [a, b] : d.merges) {
    const auto found =
        places.find(d.tokens[static_cast<size_t>(a)] + d.tokens[static_cast<size_t>(b)]);
    if (found != places.end()) made[found->second] = true;
  }

  for (size_t id = 0; id < d.tokens.size(); ++id) {
    const auto number = static_cast<int32_t>(id);
    const bool is_added =
        std::ranges::find(d.special, number, &SpecialToken::id) != d.special.end();
    if (d.tokens[id].size() > 1 && !made[id] && !is_added)
      d.special.push_back({number, d.tokens[id]});
  }
  return d;
}

namespace {

/// Reads the token that a post-processor puts before a text. Ignores everything else, which
/// concerns pairs, offsets, or the end of the text.
void read_post_processor(const Json& json, BPEDefinition& d, const std::string& where) {
  for (const Json& part : parts_of(json, "processors", where)) {
    if (type_of(part, where) != "TemplateProcessing") continue;
    const auto single = json_get<std::vector<Json>>(part, "single", where, Exit::data);
    if (single.empty() || !single[0].contains("SpecialToken")) continue;
    const auto text = json_get<std::string>(single[0]["SpecialToken"], "id", where, Exit::data);
    const auto found = std::ranges::find(d.special, text, &SpecialToken::text);
    if (found == d.special.end())
      fail(Exit::data, where, ": texts begin with \"", text, "\", which is not an added token");
    d.begin = found->id;
  }
}

}  // namespace

SpecialToken added_token(const Json& token, const std::string& where) {
  const auto text = json_get<std::string>(token, "content", where, Exit::data);
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (flag(token, key, false, where))
      unknown(where, "the added token \"" + text + "\" with " + key);
  }
  return {.id = static_cast<int32_t>(json_integer(token, "id", 0, 99'999'999, where, Exit::data)),
          .text = text,
          .special = flag(token, "special", true, where)};
}

BPEDefinition bpe_from_json(const Json& json, const std::string& where) {
  BPEDefinition d;
  if (!json.is_object()) fail(Exit::data, where, ": this is not a tokenizer.json");

  const auto model = json_get<Json>(json, "model", where, Exit::data);
  if (!is_absent(model, "type") && type_of(model, where) != "BPE")
    unknown(where, "the model " + type_of(model, where));
  // Each of these options would change the merges.
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!is_absent(model, key) && model[key] != Json(""))
      unknown(where, std::string("the model's ") + key);
  }

  d.whole_pieces = flag(model, "ignore_merges", false, where);
  if (flag(model, "byte_fallback", false, where)) {
    d.byte_tokens.assign(256, -1);
    if (d.whole_pieces) unknown(where, "the model's ignore_merges beside byte_fallback");
    read_sentencepiece(json, d, where);
  } else {
    if (!is_absent(json, "normalizer")) read_normalizer(json["normalizer"], d, where);
    if (is_absent(json, "pre_tokenizer")) unknown(where, "a tokenizer without pre_tokenizer");
    read_pretokenizer(json["pre_tokenizer"], d, where);
  }

  if (!is_absent(json, "added_tokens")) {
    for (const Json& token : json_get<std::vector<Json>>(json, "added_tokens", where, Exit::data)) {
      d.special.push_back(added_token(token, where));
      // Added tokens are found before spaces are replaced by U+2581.
      if (!d.byte_tokens.empty() && flag(token, "normalized", false, where))
        unknown(where,
                "the added token \"" + d.special.back().text + "\", found in normalized text,");
    }
  }

  if (!is_absent(json, "post_processor")) read_post_processor(json["post_processor"], d, where);
  const auto ids = read_vocabulary(json_get<Json>(model, "vocab", where, Exit::data), d, where);

  for (const Json& merge : json_get<std::vector<Json>>(model, "merges", where, Exit::data)) {
    // Older files contain a merge as a text "a b", newer files as a list.
    if (merge.is_string()) {
      add_merge_line(ids, merge.get<std::string>(), d, where);
    } else {
      if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
        fail(Exit::data, where, ": a merge must be two tokens, not ", json_text(merge));
      add_merge(ids, merge[0].get<std::string>(), merge[1].get<std::string>(), d, where);
    }
  }
  return d;
}

}  // namespace lathe
