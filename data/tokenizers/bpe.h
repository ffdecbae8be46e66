// Byte-pair encoding (Sennrich et al. 2016): of bytes (Radford et al. 2019), and in SentencePiece's
// form of characters (Kudo and Richardson 2018), which Llama 2 and Mistral have.
//
// In SentencePiece's form a character without a token becomes its bytes (byte_fallback). There
// is no pre-tokenizer; if no token has a space after another character, a text is still encoded
// word by word. The token that a post-processor adds before a prompt (`BPEDefinition::begin`)
// is kept. Chat templates of folders are not read; chat_template.h has two.
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

/// A token that stands for a text as a whole, as <|endoftext|>: merges do not make it. `special`:
/// it is no text, and Hugging Face's decoders may leave it out.
struct SpecialToken {
  int32_t id = 0;
  std::string text;
  bool special = true;
  bool operator==(const SpecialToken&) const = default;
};

/// U+2581, which SentencePiece writes for a space.
inline constexpr const char* space_mark = "\xE2\x96\x81";
/// Where SentencePiece's form puts a space before text: nowhere; before each part between special
/// tokens; before each that does not begin with one; or the same before a text's beginning alone.
enum class SpaceBefore : uint8_t { none, each, each_without, first_without };

/// What makes a BPE tokenizer.
struct BPEDefinition {
  std::vector<std::string> tokens;  ///< the bytes of each id; empty: no token has that id
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< of two ids, the first merge first
  std::vector<std::string> patterns{
      gpt2_pattern};  ///< pre-tokenizers, each of which splits what the last one left;
                      ///< SentencePiece's form may have none
  std::vector<SpecialToken> special;
  bool whole_pieces =
      false;         ///< a piece that is a token needs no merges (Hugging Face's ignore_merges)
  bool nfc = false;  ///< text is put into Unicode's normal form C first
  /// SentencePiece's form, whose merges begin with characters: the 256 tokens of bytes, which stand
  /// for a character that has none (byte_fallback). Spaces are written as U+2581, and that is a
  /// space. Empty: merges begin with bytes.
  std::vector<int32_t> byte_tokens{};
  SpaceBefore space_before =
      SpaceBefore::none;  ///< of SentencePiece's form; decode takes it away again
  int32_t begin =
      -1;  ///< the special token that prompts begin with (Hugging Face's post-processor), or -1
  bool operator==(const BPEDefinition&) const = default;
};

/// What encoding does with the text of a special token: take the token, take it as any text, or
/// refuse it.
enum class SpecialText { token, text, refuse };

/// The id of the special token with this text, or -1.
int32_t special_id(const BPEDefinition& definition, std::string_view text);

/// Ids of the special tokens that texts begin and end with, and that a chat's turn ends with; -1:
/// there is none.
struct TextMarks {
  int32_t begin = -1, end = -1, turn_end = -1;
};
/// Those of a tokenizer: what its post-processor begins with, and by their usual names. GPT-2's
/// <|endoftext|> is both.
TextMarks boundary_tokens(const BPEDefinition& definition);

/// A BPE tokenizer: immutable, one object for any number of threads.
///
/// Every text has ids, and decode gives its bytes back: bytes that are not UTF-8 are pieces of
/// their own. Not with nfc; and in SentencePiece's form U+2581 comes back as a space, and a space
/// before a text, or put behind a special token, may be lost or stay, as Hugging Face's decoders do
/// it.
class BPE {
 public:
  /// Exit::data, beginning with `where`, for a definition that contradicts itself.
  BPE(BPEDefinition definition, const std::string& where);
  ~BPE();

  const BPEDefinition& definition() const { return definition_; }
  /// Ids go from 0 to size() - 1.
  int64_t size() const { return static_cast<int64_t>(definition_.tokens.size()); }

  /// Encodes text, keeping what it learns of frequent pieces. For one thread.
  class Encoder {
   public:
    explicit Encoder(const BPE& bpe);
    ~Encoder();
    /// Appends the ids of `text`; `begins`: it starts from nothing, so that a space may be put
    /// before it. Exit::data where the vocabulary lacks a byte, or a special token is refused.
    void encode(std::string_view text, std::vector<int32_t>& out,
                SpecialText special = SpecialText::token, bool begins = true);

   private:
    struct Cache;
    void encode_part(std::string_view text, bool begins, bool first, std::vector<int32_t>& out);
    void encode_piece(std::string_view piece, size_t pattern, std::vector<int32_t>& out);
    void encode_words(std::string_view text, std::vector<int32_t>& out);
    void merge(std::string_view piece, std::vector<int32_t>& out);

    const BPE& bpe_;
    std::vector<Pretokenizer::Cursor> cursors_;  // of each pattern
    std::unique_ptr<Cache> cache_;
  };

  /// The bytes of ids; an id that no token has becomes U+FFFD. `begins`: they are a whole text's,
  /// and the space that was put before it is left out.
  std::string decode(const std::vector<int64_t>& ids, bool begins = true) const;
  /// Whether text may be cut behind a line break that has no white space on either side, and its
  /// parts encoded one by one: where that is known of the patterns, or in SentencePiece's form no
  /// token has a line break within.
  bool ends_at_lines() const { return ends_at_lines_; }
  /// The id of a token's bytes or of a special token's text, or -1.
  int32_t id_of(std::string_view token) const;

 private:
  struct Merges;
  /// The special token at text[at], the longest one, or null.
  const SpecialToken* special_at(std::string_view text, size_t at) const;

  BPEDefinition definition_;
  std::vector<Pretokenizer> pretokenizers_;
  std::array<int32_t, 256> of_byte_{};  // -1: the vocabulary lacks it
  bool of_characters_ = false;          // SentencePiece's form
  bool ends_at_spaces_ = false;         // no token has a space behind something else
  bool ends_at_lines_ = false;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unique_ptr<Merges> merges_;
  std::array<bool, 256> starts_special_{};
};

/// GPT-2's alphabet: the printable character, as UTF-8, that stands for each byte in vocabularies.
/// The bytes that are printable in Latin-1 stand for themselves, the others for U+0100 and on, in
/// order.
const std::array<std::string, 256>& byte_alphabet();
/// <0x0A>, as SentencePiece's vocabularies have bytes.
std::string printed_byte(size_t byte);
/// A token as vocabularies print it: bytes in that alphabet; in SentencePiece's form text, and
/// bytes as printed_byte.
std::string printed_token(const BPEDefinition& definition, size_t id);

/// From the texts of vocab.json and merges.txt, GPT-2's form. Exit::data; the two names begin the
/// sentences.
BPEDefinition bpe_from_gpt2(const std::string& vocabulary, const std::string& merges,
                            const std::string& vocabulary_name, const std::string& merges_name);
/// From a folder with vocab.json and merges.txt (GPT-2's form), or a tokenizer.json of Hugging
/// Face's form, or a folder with one. Exit::data with what is wrong, or what this build can't do,
/// by the name of its field.
BPEDefinition read_bpe(const fs::path& path);
/// Writes it as a tokenizer.json of Hugging Face's form, durably.
void write_bpe(const BPEDefinition& definition, const fs::path& file);

/// The definition as JSON of Hugging Face's form.
Json bpe_to_json(const BPEDefinition& definition);
/// And back. Exit::data; `where` begins the sentence.
BPEDefinition bpe_from_json(const Json& json, const std::string& where);

}  // namespace lathe
