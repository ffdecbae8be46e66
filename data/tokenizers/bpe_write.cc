// Writes BPE tokenizers in the form of Hugging Face's tokenizer.json.
#include <array>
#include <unordered_map>
#include <utility>

#include "core/io/text.h"
#include "data/tokenizers/bpe.h"

namespace lathe {

const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, 256> letters = [] {
    std::array<std::string, 256> made;
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const uint32_t c = printable ? b : next++;
      made[b] = c < 0x80 ? std::string{static_cast<char>(c)}
                         : std::string{static_cast<char>(0xC0 | c >> 6),
                                       static_cast<char>(0x80 | (c & 0x3F))};
    }
    return made;
  }();
  return letters;
}

std::string printed_token(const BPEDefinition& d, size_t id) {
  const std::string& token = d.tokens[id];
  if (!d.byte_tokens.empty()) {
    const auto byte = static_cast<unsigned char>(token[0]);
    return std::cmp_equal(d.byte_tokens[byte], id) ? printed_byte(byte)
                                                   : replace_all(token, " ", space_mark);
  }
  std::string out;
  for (const char c : token) out += byte_alphabet()[static_cast<unsigned char>(c)];
  return out;
}

std::string printed_byte(size_t byte) { return format("<0x%02zX>", byte); }

namespace {

/// Returns a post-processor that puts the token d.begin before a text, and before both texts of a
/// pair; null if d.begin is -1.
Json post_processor(const BPEDefinition& d) {
  if (d.begin < 0) return nullptr;
  const std::string& text = d.tokens[static_cast<size_t>(d.begin)];
  const auto token = [&](int n) { return Json{{"SpecialToken", {{"id", text}, {"type_id", n}}}}; };
  const auto sequence = [](const char* id, int n) {
    return Json{{"Sequence", {{"id", id}, {"type_id", n}}}};
  };
  Json of_text;
  of_text[text] = {{"id", text}, {"ids", {d.begin}}, {"tokens", {text}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({token(0), sequence("A", 0)})},
          {"pair", Json::array({token(0), sequence("A", 0), token(1), sequence("B", 1)})},
          {"special_tokens", of_text}};
}

/// Returns a token as a tokenizer.json contains it. In SentencePiece's form, the token of a byte is
/// written as a character if it takes part in merges: Gemma's tab, for example, is not written as
/// <0x09>.
std::string listed_token(const BPEDefinition& d, size_t id, const std::vector<bool>& is_merged) {
  const bool is_character =
      !d.byte_tokens.empty() && is_merged[id] && d.tokens[id].size() == 1 && d.tokens[id] != " ";
  return is_character ? d.tokens[id] : printed_token(d, id);
}

/// Returns the vocabulary of a tokenizer.json: the id of each token.
Json vocab_of(const BPEDefinition& d, const std::vector<bool>& is_merged) {
  std::vector<bool> is_special(d.tokens.size());
  for (const auto& s : d.special) is_special[static_cast<size_t>(s.id)] = true;

  // Find keys with a map, because the JSON library's search reads all keys.
  Json vocab = Json::object();
  auto& entries = vocab.get_ref<Json::object_t&>();
  std::unordered_map<std::string, size_t> places;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    const std::string& token = d.tokens[id];
    if (token.empty()) continue;
    const std::string key = is_special[id] ? token : listed_token(d, id, is_merged);
    // If two ids have the same text, keep the later one.
    if (const auto [place, is_new] = places.emplace(key, entries.size()); is_new)
      entries.emplace_back(key, id);
    else
      (entries.begin() + static_cast<std::ptrdiff_t>(place->second))->second = id;
  }
  return vocab;
}

Json added_tokens(const BPEDefinition& d) {
  Json added = Json::array();
  for (const auto& s : d.special) {
    added.push_back({{"id", s.id},
                     {"content", s.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", s.special}});
  }
  return added;
}

/// The steps of a tokenizer.json from a text to pieces, and from tokens to a text.
struct TextSteps {
  Json normalizer, pre_tokenizer, decoder;
};

/// Returns the steps of a byte-level tokenizer in GPT-2's alphabet.
TextSteps steps_of_bytes(const BPEDefinition& d) {
  // The patterns are written out here, so ByteLevel only converts to the alphabet.
  const Json bytes{{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}};
  Json splits = Json::array();
  for (const std::string& pattern : d.patterns) {
    const std::string text = literal_text(pattern);
    splits.push_back({{"type", "Split"},
                      {"pattern", text.empty() ? Json{{"Regex", pattern}} : Json{{"String", text}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  splits.push_back(bytes);
  return {.normalizer = d.nfc ? Json{{"type", "NFC"}} : Json(nullptr),
          .pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", splits}},
          .decoder = bytes};
}

/// Returns the steps of a tokenizer in SentencePiece's form.
TextSteps steps_of_characters(const BPEDefinition& d) {
  TextSteps steps{.normalizer = d.nfc ? Json{{"type", "NFC"}} : Json(nullptr),
                  .pre_tokenizer = nullptr,
                  .decoder = nullptr};
  // A normalizer can put a space before each part or none; other rules need the pre-tokenizer
  // Metaspace.
  const SpaceBefore rule = d.space_before;
  const bool in_normalizer =
      rule == SpaceBefore::each || (rule == SpaceBefore::none && d.patterns.empty());
  Json parts = Json::array();
  if (rule == SpaceBefore::each) parts.push_back({{"type", "Prepend"}, {"prepend", space_mark}});
  parts.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space_mark}});
  if (in_normalizer) steps.normalizer = {{"type", "Sequence"}, {"normalizers", parts}};

  if (!in_normalizer || !d.patterns.empty())
    steps.pre_tokenizer = {{"type", "Metaspace"},
                           {"replacement", space_mark},
                           {"prepend_scheme", rule == SpaceBefore::each_without    ? "always"
                                              : rule == SpaceBefore::first_without ? "first"
                                                                                   : "never"},
                           {"split", !d.patterns.empty()}};

  Json decoders =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", space_mark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (rule != SpaceBefore::none)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  steps.decoder = {{"type", "Sequence"}, {"decoders", decoders}};
  return steps;
}

}  // namespace

Json bpe_to_json(const BPEDefinition& d) {
  std::vector<bool> is_merged(d.tokens.size());
  for (const auto& [a, b] : d.merges)
    is_merged[static_cast<size_t>(a)] = is_merged[static_cast<size_t>(b)] = true;
  Json merges = Json::array();
  for (const auto& [a, b] : d.merges)
    merges.push_back(listed_token(d, static_cast<size_t>(a), is_merged) + " " +
                     listed_token(d, static_cast<size_t>(b), is_merged));

  const TextSteps steps = d.byte_tokens.empty() ? steps_of_bytes(d) : steps_of_characters(d);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(d)},
          {"normalizer", steps.normalizer},
          {"pre_tokenizer", steps.pre_tokenizer},
          {"post_processor", post_processor(d)},
          {"decoder", steps.decoder},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", !d.byte_tokens.empty()},
            {"byte_fallback", !d.byte_tokens.empty()},
            {"ignore_merges", d.whole_pieces},
            {"vocab", vocab_of(d, is_merged)},
            {"merges", merges}}}};
}

void write_bpe(const BPEDefinition& definition, const fs::path& file) {
  write_file_durably(file, json_text(bpe_to_json(definition), 1) + "\n");
}

}  // namespace lathe
