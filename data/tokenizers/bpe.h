// Declares byte-pair encoding (Sennrich et al. 2016) of bytes (Radford et al. 2019), and of
// characters in SentencePiece's form (Kudo and Richardson 2018), which Llama 2 and Mistral use.
//
// In SentencePiece's form, a character without a token is encoded as its bytes (byte_fallback).
// Only this form allows a tokenizer without a pre-tokenizer. Such a tokenizer encodes a text word
// by word, for speed, unless a token such as "a b" extends over a word boundary. Hugging Face's
// post-processors are ignored, except for the token that they add before a prompt
// (`BPEDefinition::begin`). Chat templates are in settings.h and chat_template.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizers/pretokenizer.h"

namespace lathe {

/// An added token in Hugging Face's terms, such as <|endoftext|>. Encoding finds its text before it
/// applies merges.
struct SpecialToken {
  int32_t id = 0;
  std::string text;
  /// Whether the token is a control token, which Hugging Face's decoders omit if
  /// skip_special_tokens is set. If false, the token is ordinary text.
  bool special = true;
  bool operator==(const SpecialToken&) const = default;
};

/// U+2581, which SentencePiece writes instead of a space.
inline constexpr const char* space_mark = "\xE2\x96\x81";
/// Defines where encoding in SentencePiece's form puts a space: nowhere (none); before each part
/// between special tokens (each); before each part that does not begin with a space (each_without);
/// or only before the first part, if it does not begin with a space (first_without).
enum class SpaceBefore : uint8_t { none, each, each_without, first_without };

/// The definition of a BPE tokenizer.
struct BPEDefinition {
  std::vector<std::string> tokens;  ///< the bytes of each id; empty: no token has that id
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< pairs of ids, in the order of their ranks
  /// Pre-tokenizers, each of which splits the pieces of the previous one. In SentencePiece's form,
  /// the list may be empty.
  std::vector<std::string> patterns{gpt2_pattern};
  std::vector<SpecialToken> special;
  /// Whether a piece that is a token becomes that token without merges (Hugging Face's
  /// ignore_merges).
  bool whole_pieces = false;
  bool nfc = false;  ///< whether text is first converted to Unicode's normal form C
  /// In SentencePiece's form, the ids of the 256 byte tokens, which replace a character without a
  /// token (byte_fallback). Merges begin with characters in this form, and U+2581 in a text is
  /// encoded as a space. If the list is empty, the tokenizer does not have this form, and merges
  /// begin with bytes.
  std::vector<int32_t> byte_tokens{};
  /// In SentencePiece's form, the positions at which encoding adds a space. decode() removes this
  /// space.
  SpaceBefore space_before = SpaceBefore::none;
  /// The special token that prompts begin with (Hugging Face's post-processor adds it); -1: none.
  int32_t begin = -1;
  bool operator==(const BPEDefinition&) const = default;
};

/// Defines how encoding treats a special token's text: as the token, as ordinary text, or as an
/// error. A SpecialToken that is text (`special` is false) always becomes the token, as in Hugging
/// Face's tokenizers.
enum class SpecialText { token, text, refuse };

/// Returns the id of the special token with this text; -1 if there is none.
int32_t special_id(const BPEDefinition& definition, std::string_view text);

/// Ids of the special tokens that begin a text, end a text, end a turn of a chat, and pad a batch;
/// -1: there is no such token.
struct BoundaryTokens {
  int32_t begin = -1, end = -1, turn_end = -1, pad = -1;
};
/// Returns a tokenizer's BoundaryTokens. `end` and `turn_end` are found by the usual names of such
/// tokens, such as </s>. `begin` is BPEDefinition::begin if that is set; otherwise, it is also
/// found by the usual names, such as <s>. GPT-2's <|endoftext|> both begins and ends texts. `pad`
/// is not set.
BoundaryTokens boundary_tokens(const BPEDefinition& definition);

/// A BPE tokenizer: immutable, so any number of threads may share one object.
///
/// If the vocabulary has a token for each byte, every text can be encoded, even if it is not UTF-8,
/// and decode() returns the same bytes. There are exceptions: nfc changes the text; in
/// SentencePiece's form U+2581 becomes a space, and a space before a text or after a special token
/// may be lost or added, as in Hugging Face's decoders.
class BPE {
 public:
  /// Throws Exit::data for a definition that contradicts itself; the message begins with `where`.
  BPE(BPEDefinition definition, const std::string& where);
  ~BPE();

  const BPEDefinition& definition() const { return definition_; }
  /// Returns the number of ids, which are 0 to size() - 1.
  int64_t size() const { return static_cast<int64_t>(definition_.tokens.size()); }

  /// Encodes text, and caches the ids of recent short pieces. Only one thread at a time may use an
  /// encoder. `bpe` must outlive the encoder.
  class Encoder {
   public:
    explicit Encoder(const BPE& bpe);
    ~Encoder();
    /// Appends the ids of `text`. If `begins` is true, nothing precedes the text, and a space is
    /// put before it as BPEDefinition::space_before requires. Throws Exit::data if the vocabulary
    /// has no token for a byte, or if `special` is refuse and the text has a special token.
    void encode(std::string_view text, std::vector<int32_t>& out,
                SpecialText special = SpecialText::token, bool begins = true);

   private:
    struct Cache;
    void encode_part(std::string_view text, bool begins, bool first, std::vector<int32_t>& out);
    void encode_piece(std::string_view piece, size_t pattern, std::vector<int32_t>& out);
    void encode_words(std::string_view text, std::vector<int32_t>& out);
    void merge(std::string_view piece, std::vector<int32_t>& out);

    const BPE& bpe_;
    std::vector<Pretokenizer::Cursor> cursors_;  // one for each pattern
    std::unique_ptr<Cache> cache_;
  };

  /// Returns the bytes of ids; an id without a token becomes U+FFFD. If `begins` is true, the ids
  /// are the beginning of a text, and the space that encoding put before it is removed.
  std::string decode(const std::vector<int64_t>& ids, bool begins = true) const;
  /// Returns whether a text may be cut at a line break with no white space on either side: whether
  /// encoding the parts separately gives the ids of the complete text. This is the case for the
  /// known patterns, and in SentencePiece's form if no token contains a line break and another
  /// character. It is not the case if an added token that is text (see SpecialToken) contains a
  /// line break and characters other than white space.
  bool ends_at_lines() const { return ends_at_lines_; }
  /// Returns the id of the token with these bytes, or of the special token with this text; -1 if
  /// there is none.
  int32_t id_of(std::string_view token) const;

 private:
  struct Merges;
  /// Returns the longest special token at text[at]; null if there is none. If `text_only` is true,
  /// considers only tokens that are text.
  const SpecialToken* special_at(std::string_view text, size_t at, bool text_only) const;

  BPEDefinition definition_;
  std::vector<Pretokenizer> pretokenizers_;
  std::array<int32_t, 256> byte_ids_{};  // id of each byte; -1: the vocabulary lacks the byte
  bool is_sentencepiece_ = false;        // whether the form is SentencePiece's
  bool ends_at_spaces_ = false;  // whether there is no pre-tokenizer, and no token spans two words
  bool ends_at_lines_ = false;
  std::unordered_map<std::string_view, int32_t>
      ids_;  // id of each token, by its bytes; without special tokens
  std::unique_ptr<Merges> merges_;
  std::array<bool, 256> special_first_bytes_{};
  bool has_text_tokens_ = false;  // whether some special tokens are text
  std::unordered_map<std::string_view, const SpecialToken*> special_;  // special tokens by text
  std::vector<size_t> special_sizes_;  // different sizes of special tokens' texts, largest first
};

/// Returns GPT-2's alphabet: the printable character, as UTF-8, that represents each byte in
/// vocabularies. Bytes that are printable in Latin-1 represent themselves; the others are
/// represented by U+0100 and the characters that follow it, in order.
const std::array<std::string, 256>& byte_alphabet();
/// Returns a byte in the form of SentencePiece's vocabularies, such as <0x0A>.
std::string printed_byte(size_t byte);
/// Returns a token as vocabulary files contain it. In GPT-2's form, the token is written in GPT-2's
/// alphabet. In SentencePiece's form, a byte token is written as in printed_byte(), and other
/// tokens are text in which U+2581 replaces spaces.
std::string printed_token(const BPEDefinition& definition, size_t id);

/// Parses the contents of vocab.json and merges.txt, which are GPT-2's form. Throws Exit::data if
/// one of them is malformed; the message begins with that file's name. `added`: special tokens that
/// neither file has.
BPEDefinition bpe_from_gpt2(const std::string& vocabulary, const std::string& merges,
                            const std::string& vocabulary_name, const std::string& merges_name,
                            std::vector<SpecialToken> added = {});
/// Reads a tokenizer. `path` is a tokenizer.json in Hugging Face's form, a folder with a
/// tokenizer.json, or a folder with vocab.json and merges.txt (GPT-2's form). As in transformers,
/// the folder's tokenizer_config.json determines for some tokenizer classes, such as Llama's and
/// Gemma's, whether prompts begin with a token. If the folder has no tokenizer.json,
/// tokenizer_config.json also determines the pre-tokenizer and the added tokens. Throws Exit::data
/// for a malformed file, and for a field that this build does not support; the message names the
/// field.
BPEDefinition read_bpe(const fs::path& path);
/// Reads an added token in Hugging Face's form: content, id and flags. Throws Exit::data if the
/// token is malformed or has an unsupported flag; the message begins with `where`.
SpecialToken added_token(const Json& token, const std::string& where);
/// Writes a definition durably as a tokenizer.json in Hugging Face's form.
void write_bpe(const BPEDefinition& definition, const fs::path& file);

/// Returns the definition as JSON in Hugging Face's form.
Json bpe_to_json(const BPEDefinition& definition);
/// Reads JSON in Hugging Face's form. Throws the errors of read_bpe(); the message begins with
/// `where`.
BPEDefinition bpe_from_json(const Json& json, const std::string& where);

}  // namespace lathe
