#include "data/tokenizers/bpe.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <queue>

#include "core/io/text.h"

namespace lathe {
namespace {

uint64_t mixed(uint64_t x) { return (x ^ x >> 32) * 0x9E3779B97F4A7C15ULL; }

/// Returns `text` in normal form C; bytes that are not UTF-8 are unchanged.
std::string normal_form_c(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_end(text, at);
    if (end == at) {
      out += text[at++];
      continue;
    }

    utf8proc_uint8_t* made = nullptr;
    const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                static_cast<utf8proc_ssize_t>(end - at), &made,
                                static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (n < 0)
      fail(Exit::data,
           "the text can't be converted to Unicode's normalization form C: ", utf8proc_errmsg(n));
    out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(n));
    std::free(made);
    at = end;
  }
  return out;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<signed char>(c) >= 0; });
}

/// Returns whether the patterns, and the added tokens that are text, always end a piece at a line
/// break with no white space on either side.
bool may_end_at_lines(const BPEDefinition& d) {
  const bool has_known_pattern =
      d.patterns.size() == 1 && (d.patterns[0] == gpt2_pattern || d.patterns[0] == llama3_pattern ||
                                 d.patterns[0] == qwen2_pattern);
  if (d.byte_tokens.empty() && !has_known_pattern) return false;

  // An added token that is text, such as "a\nb", may extend beyond a line break.
  return std::ranges::none_of(d.special, [](const SpecialToken& s) {
    return !s.special && s.text.find('\n') != std::string::npos &&
           s.text.find_first_not_of(" \t\r\n") != std::string::npos;
  });
}

}  // namespace

/// A hash table with open addressing: for each pair of ids that is merged, its rank among the
/// merges and the id that it becomes.
struct BPE::Merges {
  struct Entry {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0, id = 0;
  };
  std::vector<Entry> entries;
  size_t mask;

  explicit Merges(size_t count) {
    size_t size = 16;
    while (size < 3 * count) size *= 2;
    entries.resize(size);
    mask = size - 1;
  }
  static uint64_t key(int32_t a, int32_t b) {
    return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  }
  /// Returns the index of a pair's entry, or of the free entry in which it would be stored.
  size_t place(uint64_t pair) const {
    size_t i = mixed(pair) >> 20 & mask;
    while (entries[i].pair != pair && entries[i].pair != ~uint64_t{0}) i = (i + 1) & mask;
    return i;
  }
  const Entry* find(int32_t a, int32_t b) const {
    const Entry& entry = entries[place(key(a, b))];
    return entry.pair == ~uint64_t{0} ? nullptr : &entry;
  }
};

/// A direct-mapped cache of the ids of earlier pieces: each piece has one slot, chosen by its hash.
struct BPE::Encoder::Cache {
  static constexpr size_t most_bytes = 23, most_ids = 9;
  struct Slot {
    uint8_t bytes = 0;
    char text[most_bytes];
    uint32_t count;
    int32_t ids[most_ids];
  };
  static_assert(sizeof(Slot) == 64);
  std::vector<Slot> slots = std::vector<Slot>(size_t{1} << 16);

  Slot& slot(std::string_view piece) {
    uint64_t hash = piece.size();
    size_t i = 0;
    for (uint64_t word; i + 8 <= piece.size(); i += 8) {
      std::memcpy(&word, piece.data() + i, 8);
      hash = mixed(hash ^ word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, piece.data() + i, piece.size() - i);
    return slots[mixed(hash ^ rest) >> 48];
  }
  static bool holds(const Slot& slot, std::string_view piece) {
    return slot.bytes == piece.size() && std::memcmp(slot.text, piece.data(), piece.size()) == 0;
  }
};

BPE::BPE(BPEDefinition definition, const std::string& where) : definition_(std::move(definition)) {
  const BPEDefinition& d = definition_;
  const auto tokens = std::ssize(d.tokens);
  if (tokens > 100'000'000)
    fail(Exit::data, where, ": a vocabulary of ", tokens, " tokens is too large");
  is_sentencepiece_ = !d.byte_tokens.empty();
  if (d.begin >= 0 && std::ranges::find(d.special, d.begin, &SpecialToken::id) == d.special.end())
    fail(Exit::data, where, ": texts begin with the token ", d.begin,
         ", which is not a special one");
  if (d.patterns.empty() && !is_sentencepiece_)
    fail(Exit::data, where, ": there is no pre-tokenizer");
  if (is_sentencepiece_ && d.byte_tokens.size() != 256)
    fail(Exit::data, where, ": only ", d.byte_tokens.size(), " of the 256 bytes have a token");

  for (const std::string& pattern : d.patterns) pretokenizers_.emplace_back(pattern, where);
  byte_ids_.fill(-1);

  std::vector<bool> is_special(d.tokens.size());
  for (const SpecialToken& s : d.special) {
    if (s.id < 0 || s.id >= tokens || s.text.empty() ||
        d.tokens[static_cast<size_t>(s.id)] != s.text)
      fail(Exit::data, where, ": the special token \"", s.text, "\" is not the token of its id ",
           s.id);
    is_special[static_cast<size_t>(s.id)] = true;
    special_first_bytes_[static_cast<unsigned char>(s.text[0])] = true;
    special_.emplace(s.text, &s);
    special_sizes_.push_back(s.text.size());
    has_text_tokens_ |= !s.special;
  }
  std::ranges::sort(special_sizes_, std::greater<>());
  special_sizes_.erase(std::ranges::unique(special_sizes_).begin(), special_sizes_.end());

  // byte_fallback needs a token for each byte. In d.tokens, the text of such a token is the byte
  // itself, not its name, such as <0x0A>.
  for (size_t byte = 0; byte < d.byte_tokens.size(); ++byte) {
    const int32_t id = byte_ids_[byte] = d.byte_tokens[byte];
    if (id < 0 || id >= tokens ||
        d.tokens[static_cast<size_t>(id)] != std::string(1, static_cast<char>(byte)))
      fail(Exit::data, where, ": the byte ", byte, " is not the token of its id ", id);
    is_special[static_cast<size_t>(id)] = true;  // id_of() does not find byte tokens
  }

  ends_at_spaces_ = d.patterns.empty();
  ends_at_lines_ = may_end_at_lines(d);

  for (int32_t id = 0; id < tokens; ++id) {
    const std::string& token = d.tokens[static_cast<size_t>(id)];
    if (token.empty()) continue;
    if (is_special[static_cast<size_t>(id)]) continue;
    if (!ids_.emplace(token, id).second)
      fail(Exit::data, where, ": ids ", ids_.at(token), " and ", id, " are the same token \"",
           token, "\"");
    if (token.size() == 1 && !is_sentencepiece_)
      byte_ids_[static_cast<unsigned char>(token[0])] = id;
    if (is_sentencepiece_ && token.size() > 1 && token.find('\n') != std::string::npos)
      ends_at_lines_ = false;
    // A token such as "a b" extends over two words, so words can't be encoded separately.
    const size_t letter = token.find_first_not_of(' ');
    if (letter != std::string::npos && token.find(' ', letter) != std::string::npos)
      ends_at_spaces_ = false;
  }

  merges_ = std::make_unique<Merges>(d.merges.size());
  std::string joined;
  for (size_t i = 0; i < d.merges.size(); ++i) {
    const auto [a, b] = d.merges[i];
    if (a < 0 || b < 0 || a >= tokens || b >= tokens)
      fail(Exit::data, where, ": merge ", i, " joins the ids ", a, " and ", b,
           ", but there are only ", tokens, " tokens");
    joined = d.tokens[static_cast<size_t>(a)] + d.tokens[static_cast<size_t>(b)];
    // The result of a merge may also be an added token, since id_of() also finds added tokens.
    const int32_t made = id_of(joined);
    if (made < 0)
      fail(Exit::data, where, ": merge ", i, " makes \"", joined, "\", which is not a token");
    const uint64_t pair = Merges::key(a, b);
    Merges::Entry& entry = merges_->entries[merges_->place(pair)];
    // If a pair has several merges, the first merge counts.
    if (entry.pair == ~uint64_t{0})
      entry = {.pair = pair, .rank = static_cast<int32_t>(i), .id = made};
  }
}
BPE::~BPE() = default;

int32_t special_id(const BPEDefinition& d, std::string_view text) {
  const auto found = std::ranges::find(d.special, text, &SpecialToken::text);
  return found == d.special.end() ? -1 : found->id;
}

BoundaryTokens boundary_tokens(const BPEDefinition& d) {
  // Added tokens that are text do not begin or end texts: Gemma's </s>, for example, is an HTML
  // tag. Tokens that end a turn are found even if they are text, since they are often added without
  // being marked as special.
  const auto first_of = [&](std::initializer_list<const char*> names, bool may_be_text = false) {
    for (const char* name : names) {
      const auto found = std::ranges::find(d.special, name, &SpecialToken::text);
      if (found != d.special.end() && (found->special || may_be_text)) return found->id;
    }
    return -1;
  };
  return {.begin = d.begin >= 0 ? d.begin : first_of({"<|begin_of_text|>", "<s>", "<|endoftext|>"}),
          .end = first_of({"<|endoftext|>", "<|end_of_text|>", "</s>"}),
          .turn_end = first_of({"<|eot_id|>", "<|im_end|>"}, /*may_be_text=*/true)};
}

BPE::Encoder::Encoder(const BPE& bpe) : bpe_(bpe), cache_(std::make_unique<Cache>()) {
  for (const Pretokenizer& pretokenizer : bpe.pretokenizers_) cursors_.emplace_back(pretokenizer);
}
BPE::Encoder::~Encoder() = default;

int32_t BPE::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found != ids_.end()) return found->second;
  const auto special = special_.find(token);
  return special != special_.end() ? special->second->id : -1;
}

const SpecialToken* BPE::special_at(std::string_view text, size_t at, bool text_only) const {
  for (const size_t size : special_sizes_) {
    if (size > text.size() - at) continue;
    const auto found = special_.find(text.substr(at, size));
    if (found != special_.end() && !(text_only && found->second->special)) return found->second;
  }
  return nullptr;
}

void BPE::Encoder::encode(std::string_view text, std::vector<int32_t>& out, SpecialText special,
                          bool begins) {
  size_t begin = 0;
  const bool text_only = special == SpecialText::text;
  const bool none = text_only && !bpe_.has_text_tokens_;
  for (size_t at = 0; !none && at < text.size();) {
    const SpecialToken* s = bpe_.special_first_bytes_[static_cast<unsigned char>(text[at])]
                                ? bpe_.special_at(text, at, text_only)
                                : nullptr;
    if (s == nullptr) {
      ++at;
      continue;
    }
    if (special == SpecialText::refuse && s->special)
      fail(Exit::data, "byte ", at, " of the text begins \"", s->text,
           "\", which is a special token");
    encode_part(text.substr(begin, at - begin), begins || begin > 0, begin == 0, out);
    out.push_back(s->id);
    begin = at += s->text.size();
  }
  encode_part(text.substr(begin), begins || begin > 0, begin == 0, out);
}

/// Encodes a part of a text between special tokens. `begins`: whether a space may be put before the
/// part. `first`: whether the part is at the beginning of the text.
void BPE::Encoder::encode_part(std::string_view text, bool begins, bool first,
                               std::vector<int32_t>& out) {
  if (text.empty()) return;
  const BPEDefinition& d = bpe_.definition_;
  std::string normal = d.nfc && !is_ascii(text) ? normal_form_c(text) : "";
  if (!normal.empty()) text = normal;
  if (!bpe_.is_sentencepiece_) return encode_piece(text, 0, out);

  std::string spaced = replace_all(text, space_mark, " ");
  const SpaceBefore rule =
      first || d.space_before != SpaceBefore::first_without ? d.space_before : SpaceBefore::none;
  if (begins && rule != SpaceBefore::none && (rule == SpaceBefore::each || spaced[0] != ' '))
    spaced.insert(0, 1, ' ');
  if (bpe_.ends_at_spaces_) return encode_words(spaced, out);
  encode_piece(spaced, 0, out);
}

/// Encodes word by word. Requires that no token has a space after another character, so that no
/// merge extends beyond the beginning of a run of spaces.
void BPE::Encoder::encode_words(std::string_view text, std::vector<int32_t>& out) {
  for (size_t at = 0; at < text.size();) {
    const size_t letter = std::min(text.find_first_not_of(' ', at), text.size());
    const size_t end = std::min(text.find(' ', letter), text.size());
    encode_piece(text.substr(at, end - at), cursors_.size(), out);
    at = end;
  }
}

void BPE::Encoder::encode_piece(std::string_view piece, size_t pattern, std::vector<int32_t>& out) {
  // Each pattern splits the pieces of the previous one. The pieces of the last pattern are encoded.
  if (pattern < cursors_.size()) {
    Pretokenizer::Cursor& cursor = cursors_[pattern];
    cursor.begin(piece);
    for (std::string_view part = cursor.next(); !part.empty(); part = cursor.next())
      encode_piece(part, pattern + 1, out);
    return;
  }

  if (piece.size() > Cache::most_bytes) return merge(piece, out);
  Cache::Slot& slot = cache_->slot(piece);
  if (Cache::holds(slot, piece)) {
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return;
  }

  const size_t before = out.size();
  merge(piece, out);
  if (out.size() - before > Cache::most_ids) return;

  slot.bytes = static_cast<uint8_t>(piece.size());
  std::memcpy(slot.text, piece.data(), piece.size());
  slot.count = static_cast<uint32_t>(out.size() - before);
  std::copy(out.begin() + static_cast<int64_t>(before), out.end(), slot.ids);
}

// Merges the pair with the lowest rank first, and the leftmost of several pairs with that rank. A
// queue of pairs over a linked list of symbols takes O(n log n) steps for n bytes.
void BPE::Encoder::merge(std::string_view piece, std::vector<int32_t>& out) {
  if (bpe_.definition_.whole_pieces || piece.size() == 1) {
    const auto found = bpe_.ids_.find(piece);
    if (found != bpe_.ids_.end()) return out.push_back(found->second);
  }

  struct Symbol {
    int32_t id;
    int32_t before, after;  // indices of the neighbors; -1: none
  };
  struct Pair {
    int32_t rank, left, right_id, left_id, id;
    bool operator>(const Pair& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
  };

  // Positions are int32.
  if (piece.size() > size_t{1} << 30)
    fail(Exit::data, "the text has a word that is too long for the tokenizer: ", piece.size(),
         " bytes");

  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> queue;
  const auto look = [&](int32_t left) {
    const int32_t right = symbols[static_cast<size_t>(left)].after;
    if (right < 0) return;
    const int32_t a = symbols[static_cast<size_t>(left)].id,
                  b = symbols[static_cast<size_t>(right)].id;
    if (const auto* merge = bpe_.merges_->find(a, b))
      queue.push({.rank = merge->rank, .left = left, .right_id = b, .left_id = a, .id = merge->id});
  };
  const auto add = [&](int32_t id) {
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({.id = id, .before = i - 1, .after = i + 1});
  };

  // In SentencePiece's form, the symbols before the first merge are characters. Bytes replace only
  // characters without a token.
  for (size_t at = 0; at < piece.size();) {
    if (const size_t length = bpe_.is_sentencepiece_ ? code_point_length(piece, at) : 0;
        length > 0) {
      if (const auto found = bpe_.ids_.find(piece.substr(at, length)); found != bpe_.ids_.end()) {
        add(found->second);
        at += length;
        continue;
      }
    }

    const auto byte = static_cast<unsigned char>(piece[at++]);
    if (bpe_.byte_ids_[byte] < 0)
      fail(Exit::data, "the tokenizer has no token for the byte value ", static_cast<int>(byte),
           ", which the text contains");
    add(bpe_.byte_ids_[byte]);
  }

  symbols.back().after = -1;
  for (int32_t i = 0; i + 1 < std::ssize(symbols); ++i) look(i);

  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    // Skip a pair if another merge has replaced one of its symbols since the pair was queued.
    Symbol& left = symbols[static_cast<size_t>(pair.left)];
    if (left.id != pair.left_id || left.after < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.after)];
    if (right.id != pair.right_id) continue;

    left.id = pair.id;
    left.after = right.after;
    right.id = -1;
    if (left.after >= 0) symbols[static_cast<size_t>(left.after)].before = pair.left;

    look(pair.left);
    if (left.before >= 0) look(left.before);
  }

  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].after)
    out.push_back(symbols[static_cast<size_t>(i)].id);
}

std::string BPE::decode(const std::vector<int64_t>& ids, bool begins) const {
  std::string text;
  for (const int64_t id : ids) {
    const bool known =
        id >= 0 && id < size() && !definition_.tokens[static_cast<size_t>(id)].empty();
    text += known ? definition_.tokens[static_cast<size_t>(id)] : "\xEF\xBF\xBD";
  }
  if (begins && definition_.space_before != SpaceBefore::none && text.starts_with(' '))
    text.erase(0, 1);
  return text;
}

}  // namespace lathe
