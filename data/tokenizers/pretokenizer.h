// The pre-tokenizer of byte-level BPE: a regular expression that matches the pieces within which
// merges stay.
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

/// The pieces into which Hugging Face's Metaspace splits text, in SentencePiece's form.
inline constexpr const char* metaspace_pattern = R"(\x20[^\x20]*|[^\x20]+)";

/// The patterns of Llama 3's and Qwen 2's tokenizers.
inline constexpr const char* llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr const char* qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

/// Returns a pattern that matches this text alone: \Q, the text and \E. Throws Exit::data,
/// beginning with `where`, for a text with \E.
std::string literal_pattern(const std::string& text, const std::string& where);
/// Returns the text of a literal_pattern(), or "" for any other pattern.
std::string literal_text(const std::string& pattern);
/// Returns the first part of a pattern that PCRE2 accepts and that means something else to
/// Oniguruma, the engine of Hugging Face's tokenizers: && and [ within a class, \h and \H. "":
/// there is none.
std::string differing_syntax(const std::string& pattern);

/// A compiled pattern, immutable and shared between threads. Letters (\p{L}), numbers (\p{N}) and
/// white space (\s, \S) are those of Unicode 16, independent of the version that PCRE2 has.
class Pretokenizer {
 public:
  /// Throws Exit::data, beginning with `where`, for a pattern that PCRE2 can't read.
  Pretokenizer(const std::string& pattern, const std::string& where);

  /// Reads the pieces of a text in order. A cursor is for one thread.
  class Cursor {
   public:
    explicit Cursor(const Pretokenizer& pretokenizer, std::string_view text = {});
    /// Begins another text and keeps the memory for matching.
    void begin(std::string_view text);
    /// Returns the next piece; empty at the end. Text that the pattern does not match is a piece,
    /// too, and so is each run of bytes that is not UTF-8: together the pieces are the text.
    std::string_view next();

   private:
    struct MatchData;
    struct Delete {
      void operator()(MatchData* data) const;
    };
    /// Returns the end of a piece from `begin` that is a word of ASCII letters, with or without a
    /// space before it, followed by another ASCII character or nothing; 0 where the pattern must
    /// decide.
    size_t end_of_word(size_t begin) const;
    /// Sets valid_end_ to the end of the UTF-8 that begins at `begin`. It reads `most` bytes and
    /// one character.
    void find_valid(size_t begin, size_t most);

    const Pretokenizer& pretokenizer_;
    std::string_view text_;
    size_t at_ = 0, valid_end_ = 0;
    bool limited_ = false;  // whether text after valid_end_ has not been checked
    size_t found_end_ = 0;  // end of a match after a piece that nothing matched, or 0
    std::unique_ptr<MatchData, Delete> data_;
  };

 private:
  std::shared_ptr<void> code_;
  // Whether the pattern takes all words that Cursor::end_of_word finds.
  bool finds_words_;
};

}  // namespace lathe
