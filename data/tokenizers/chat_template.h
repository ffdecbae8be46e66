// Conversations as ids, in the templates of chat models: the one that came with the tokenizer, or
// else that of its special tokens. No LibTorch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/chat_format.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

/// The format in which a tokenizer's model writes conversations, ChatML or Llama 3's. Texts of
/// messages are ordinary text, even where they look like a special token.
class ChatTemplate {
 public:
  /// Throws Exit::usage where the tokenizer's chat template writes neither format, or where the
  /// tokenizer lacks special tokens of the template's format or, without a template, of both
  /// formats. `where` begins the message, and `what_to_do` ends it.
  ChatTemplate(const Tokenizer& tokenizer, const std::string& where, const std::string& what_to_do);

  /// Throws Exit::data, beginning with `where`, if a message has a role that the template writes
  /// differently from user, assistant and system.
  void check_roles(const std::vector<ChatMessage>& messages, const std::string& where) const;
  /// Returns the ids of the messages and of the beginning of an answer by the assistant.
  std::vector<int64_t> encode_prompt(const std::vector<ChatMessage>& messages) const;
  /// Appends a complete conversation. The assistant's texts, and the tokens that end them, are
  /// learned, except in the first `prompt` messages; all other ids have token_mark.
  void append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                     std::vector<int32_t>& ids, size_t prompt = 0) const;
  const ChatFormat& format() const { return format_; }
  /// Returns the token that ends an answer.
  int64_t end() const { return close_; }

 private:
  /// Appends a message without its end.
  void begin(BPE::Encoder& encoder, std::vector<int32_t>& ids, const ChatMessage& message) const;

  const BPE* bpe_;
  ChatFormat format_;
  int64_t first_ = -1, open_ = -1, opened_ = -1, close_ = -1;  // -1: the format has none
  std::string behind_role_, behind_message_;
  bool spaced_ = true;  // the tokenizer may put a space before text that follows a special token
};

/// Returns a tokenizer's chat template in words; empty: it has none.
std::string describe_chat(const Tokenizer& tokenizer);
/// Sets a tokenizer's chat template to ChatML ("chatml"), Llama 3's ("llama3") or the Jinja
/// template in a file. The token that ends its answers becomes the one that ends texts. Throws
/// Exit::usage where the tokenizer lacks its special tokens, or there is no such file.
void set_chat_template(Tokenizer& tokenizer, const std::string& choice);

}  // namespace lathe
