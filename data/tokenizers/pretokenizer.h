// The pre-tokenizer of byte-level BPE: a regular expression whose matches are the pieces that
// merges stay within.
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

/// What Hugging Face's Metaspace splits text into, in SentencePiece's form.
inline constexpr const char* metaspace_pattern = R"(\x20[^\x20]*|[^\x20]+)";

/// Those of Llama 3's and Qwen 2's.
inline constexpr const char* llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr const char* qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

/// A compiled pattern; immutable, shared between threads. Letters (\p{L}), numbers (\p{N}) and
/// white space (\s, \S) are those of Unicode 16, whatever PCRE2 was built with.
class Pretokenizer {
 public:
  /// Exit::data, beginning with `where`, for a pattern that PCRE2 can't read.
  Pretokenizer(const std::string& pattern, const std::string& where);

  /// Goes through a text in order. A cursor is for one thread.
  class Cursor {
   public:
    explicit Cursor(const Pretokenizer& pretokenizer, std::string_view text = {});
    /// Begins another text; what matching needs stays.
    void begin(std::string_view text);
    /// The next piece; empty at the end. What the pattern does not match is a piece too, and so is
    /// each run of bytes that is not UTF-8: together the pieces are the text.
    std::string_view next();

   private:
    struct MatchData;
    struct Delete {
      void operator()(MatchData* data) const;
    };
    /// Where a piece from `begin` ends that is a word of ASCII letters, after a space or not, with
    /// something else of ASCII or nothing behind it; 0 where the pattern has to tell.
    size_t end_of_word(size_t begin) const;
    /// Sets valid_end_ behind the UTF-8 that begins at `begin`, of which `most` bytes and one
    /// character are looked at.
    void find_valid(size_t begin, size_t most);

    const Pretokenizer& pretokenizer_;
    std::string_view text_;
    size_t at_ = 0, valid_end_ = 0;
    bool limited_ = false;  // whether there is more text behind valid_end_ that was not looked at
    size_t found_end_ = 0;  // of a match behind a piece that nothing matched, or 0
    std::unique_ptr<MatchData, Delete> data_;
  };

 private:
  std::shared_ptr<void> code_;
  bool
      finds_words_;  // whether the pattern is one that takes such words as Cursor::end_of_word does
};

}  // namespace lathe
