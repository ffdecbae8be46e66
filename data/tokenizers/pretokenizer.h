// Declares the pre-tokenizer of byte-level BPE, a regular expression that splits a text into
// pieces. A token never extends over two pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

/// The pattern of GPT-2's tokenizer (Radford et al. 2019).
inline constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The pattern that splits text into the pieces of Hugging Face's Metaspace, in SentencePiece's
/// form.
inline constexpr const char* metaspace_pattern = R"(\x20[^\x20]*|[^\x20]+)";

/// The patterns of Llama 3's and Qwen 2's tokenizers.
inline constexpr const char* llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr const char* qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

/// Returns a pattern that matches only this text: \Q, the text and \E. Throws Exit::data for a text
/// with \E; the message begins with `where`.
std::string literal_pattern(const std::string& text, const std::string& where);
/// Returns the text of a literal_pattern(); "" for any other pattern.
std::string literal_text(const std::string& pattern);
/// Returns the first construct in a pattern whose meaning in PCRE2 differs from its meaning in
/// Oniguruma, the engine of Hugging Face's tokenizers. These constructs are && and [ within a
/// class, \h, \H and \Q. Returns "" if there is no such construct, or if the pattern is a
/// literal_pattern().
std::string differing_syntax(const std::string& pattern);

/// A compiled pattern, immutable and shared between threads. Letters (\p{L}), numbers (\p{N}) and
/// white space (\s, and \S outside of classes) are defined by Unicode 16. All other properties,
/// such as \p{Lu} and \P{L}, are defined by the version of Unicode that PCRE2 uses.
class Pretokenizer {
 public:
  /// Throws Exit::data for a pattern that PCRE2 can't read; the message begins with `where`.
  Pretokenizer(const std::string& pattern, const std::string& where);

  /// Reads the pieces of a text in order. Only one thread at a time may use a cursor. The
  /// pre-tokenizer and the text must outlive the cursor.
  class Cursor {
   public:
    explicit Cursor(const Pretokenizer& pretokenizer, std::string_view text = {});
    /// Begins another text and keeps the memory for matching.
    void begin(std::string_view text);
    /// Returns the next piece; an empty one at the end. Text that the pattern does not match is
    /// also a piece, and so is each run of bytes that is not UTF-8. All pieces, concatenated, are
    /// the text.
    std::string_view next();

   private:
    struct MatchData;
    struct Delete {
      void operator()(MatchData* data) const;
    };
    /// Returns the end of the piece that begins at `begin`, if this piece is a word of ASCII
    /// letters, with or without a space before it, and an ASCII character or the end of the text
    /// follows. Returns 0 if there is no such piece, so that PCRE2 must match the pattern.
    size_t end_of_word(size_t begin) const;
    /// Sets valid_end_ to the end of the valid UTF-8 that begins at `begin`. Reads at most `most`
    /// bytes and one more character.
    void find_valid(size_t begin, size_t most);

    const Pretokenizer& pretokenizer_;
    std::string_view text_;
    size_t at_ = 0, valid_end_ = 0;
    bool limited_ = false;  // whether unchecked text follows valid_end_
    size_t found_end_ = 0;  // end of the match that follows a piece without a match; 0: none
    std::unique_ptr<MatchData, Delete> data_;
  };

 private:
  std::shared_ptr<void> code_;
  // Whether this pattern makes a piece of each word that Cursor::end_of_word() finds.
  bool finds_words_;
};

}  // namespace lathe
