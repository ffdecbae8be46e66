// Tokenizers: text to ids and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace lathe {

/// "byte": ids are the 256 byte values. "char": ids index the sorted Unicode code points of a text, saved with the
/// data.
class Tokenizer {
 public:
  /// The tokenizer of 256 byte values.
  static Tokenizer byte();
  /// The code points of UTF-8 `text`. Exit::data on malformed UTF-8, naming the byte.
  static Tokenizer characters(std::string_view text);
  /// From a manifest's kind and vocabulary.
  static Tokenizer from(const std::string& kind, const std::vector<std::string>& vocabulary);

  const std::string& kind() const { return kind_; }
  int64_t size() const { return kind_ == "byte" ? 256 : static_cast<int64_t>(vocabulary_.size()); }
  /// "char": one code point each, by id; "byte": empty.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }

  /// Ids of `text`. A character that is not in the vocabulary is an error of code `code` that shows it.
  std::vector<int64_t> encode(std::string_view text, Exit code = Exit::data) const;
  /// Text of ids; an id without a character becomes U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const;

 private:
  std::string kind_ = "byte";
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string, int64_t> ids_;
};

}  // namespace lathe
