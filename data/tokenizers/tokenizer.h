// Tokenizers: text to ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizers/bpe.h"

namespace lathe {

/// "byte": ids are the 256 byte values. "char": ids index the sorted Unicode code points of a text.
/// "bpe": byte-level byte-pair encoding, or SentencePiece's. What it is made of is saved with the
/// data and with each checkpoint.
class Tokenizer {
 public:
  /// The tokenizer of 256 byte values.
  static Tokenizer byte();
  /// The code points of UTF-8 `text`. Exit::data on malformed UTF-8, naming the byte.
  static Tokenizer characters(std::string_view text);
  /// "byte", or "char" with its vocabulary. Exit::data for another kind or a character twice.
  static Tokenizer from(const std::string& kind, const std::vector<std::string>& vocabulary);
  /// A BPE of files (read_bpe).
  static Tokenizer bpe(const fs::path& path);
  /// What add_to_json wrote into an object, whose kind is its field `kind_key`. Exit::data,
  /// beginning with `where`.
  static Tokenizer from_json(const Json& json, const char* kind_key, const std::string& where);
  /// Writes all that from_json needs into the object `json`, the kind as its field `kind_key`.
  void add_to_json(Json& json, const char* kind_key) const;

  const std::string& kind() const { return kind_; }
  /// Ids are 0 to size() - 1.
  int64_t size() const;
  /// "char": one code point each, by id; else empty.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  /// Null unless it is one.
  const BPE* bpe() const { return bpe_.get(); }
  /// The token that ends a document, a BPE's <|endoftext|>, <|end_of_text|> or </s>; -1 where there
  /// is none.
  int32_t document_end() const;
  /// What a prompt begins with: a BPE's definition().begin, or -1.
  int32_t prompt_begin() const { return bpe_ ? bpe_->definition().begin : -1; }
  /// Whether a text that is written ends with this token: of a document, or of a chat's turn.
  bool ends_text(int64_t id) const;
  /// Whether both give every text the same ids.
  bool operator==(const Tokenizer& other) const;

  /// Ids of `text`; a BPE takes the texts of special tokens for those. A character that is not in
  /// the vocabulary is an error of code `code` that shows it.
  std::vector<int64_t> encode(std::string_view text, Exit code = Exit::data) const;
  /// Text of ids; an id without a character becomes U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const;
  /// What an id adds to the text before it.
  std::string piece(int64_t id) const;

 private:
  std::string kind_ = "byte";
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string, int64_t> ids_;
  std::shared_ptr<const BPE> bpe_;
};

}  // namespace lathe
