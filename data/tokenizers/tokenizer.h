// Declares Tokenizer, which converts text to ids and ids to text.
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
#include "data/tokenizers/settings.h"

namespace lathe {

/// A tokenizer of one of three kinds. "byte": ids are the 256 byte values. "char": ids index the
/// sorted Unicode code points of a training text. "bpe": byte-pair encoding of bytes, or
/// SentencePiece's form. Data folders and checkpoints contain the tokenizer's definition.
class Tokenizer {
 public:
  /// Returns the tokenizer of 256 byte values.
  static Tokenizer byte();
  /// Returns a "char" tokenizer of the code points in `text`. Throws Exit::data with the position
  /// of the first byte that is not UTF-8.
  static Tokenizer characters(std::string_view text);
  /// Returns a tokenizer of the kind "byte", or of the kind "char" with this vocabulary. Throws
  /// Exit::data for another kind or a repeated character.
  static Tokenizer from(const std::string& kind, const std::vector<std::string>& vocabulary);
  /// Reads a BPE tokenizer from files (read_bpe). If `path` is a folder, also reads its settings.
  /// Throws Exit::data if the tokenizer can't be read. For a GGUF file, the message recommends
  /// `lathe import`.
  static Tokenizer bpe(const fs::path& path);
  /// Returns the tokenizer that add_to_json() has written into an object, whose field `kind_key` is
  /// the tokenizer's kind. Throws Exit::data if the object is malformed; the message begins with
  /// `where`.
  static Tokenizer from_json(const Json& json, const char* kind_key, const std::string& where);
  /// Writes the definition and the settings into the object `json`, with the kind in its field
  /// `kind_key`.
  void add_to_json(Json& json, const char* kind_key) const;

  const std::string& kind() const { return kind_; }
  /// Returns the number of ids, which are 0 to size() - 1.
  int64_t size() const;
  /// Returns the character of each id, as UTF-8, for "char"; empty for other kinds.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  /// Returns the BPE; null for other kinds.
  const BPE* bpe() const { return bpe_.get(); }
  /// Returns the token that ends a document: a BPE's special token <|endoftext|>, <|end_of_text|>
  /// or </s>. If the BPE has none of these, returns the token that ends a text according to the
  /// settings, unless that token also ends a turn of a chat. Returns -1 if there is no such token.
  int32_t document_end() const;
  /// Returns the token that a prompt begins with: a BPE's definition().begin; -1 for other kinds.
  int32_t prompt_begin() const { return bpe_ ? bpe_->definition().begin : -1; }
  /// Returns whether generation stops at this token, because it ends a document or a turn of a
  /// chat.
  bool ends_text(int64_t id) const;
  /// Returns the tokens that begin and end a text: the tokens that the settings name or, if the
  /// settings name none, those with the usual names. All are -1 unless this is a BPE.
  BoundaryTokens marks() const;
  /// Returns the settings that came with the tokenizer, such as its chat template. They do not
  /// change ids.
  const TokenizerSettings& settings() const { return settings_; }
  /// Replaces the settings.
  void set_settings(TokenizerSettings settings) { settings_ = std::move(settings); }
  /// Returns whether both tokenizers have the same kind and definition, so that they give every
  /// text the same ids. Settings are not compared.
  bool operator==(const Tokenizer& other) const;

  /// Returns the ids of `text`. A BPE encodes the text of a special token as that token. If a
  /// character is not in the vocabulary, throws an error with exit code `code` that names the
  /// character.
  std::vector<int64_t> encode(std::string_view text, Exit code = Exit::data) const;
  /// Returns the text of ids; an id without a character becomes U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const;
  /// Returns the text that an id appends to the text of the ids before it.
  std::string piece(int64_t id) const;

 private:
  std::string kind_ = "byte";
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string, int64_t> ids_;
  std::shared_ptr<const BPE> bpe_;
  TokenizerSettings settings_;
};

}  // namespace lathe
