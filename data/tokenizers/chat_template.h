// Encodes conversations to token ids, in the format of the tokenizer's chat template or, if it has
// none, in the format that its special tokens imply. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/chat_format.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

/// Encodes conversations in the format of a tokenizer, ChatML or Llama 3's. Messages are encoded as
/// ordinary text, even if they contain the text of a special token.
class ChatTemplate {
 public:
  /// Throws Exit::usage if the tokenizer's chat template writes neither format, or if the tokenizer
  /// lacks special tokens of that format. If there is no template, throws Exit::usage if the
  /// tokenizer has the special tokens of neither format. The message begins with `where` and ends
  /// with `what_to_do`. `tokenizer` must outlive this object.
  ChatTemplate(const Tokenizer& tokenizer, const std::string& where, const std::string& what_to_do);

  /// Throws Exit::data, with a message that begins with `where`, if a message has a role other than
  /// user, assistant and system, and the template does not treat all roles alike.
  void check_roles(const std::vector<ChatMessage>& messages, const std::string& where) const;
  /// Returns the ids of the messages and of the beginning of an answer by the assistant.
  std::vector<int64_t> encode_prompt(const std::vector<ChatMessage>& messages) const;
  /// Appends a complete conversation. The assistant's texts, and the tokens that end them, count
  /// toward the loss, except in the first `prompt` messages. All other ids get token_mark
  /// (data/tokenizers/mark.h).
  void append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                     std::vector<int32_t>& ids, size_t prompt = 0) const;
  const ChatFormat& format() const { return format_; }
  /// Returns the token that ends an answer.
  int64_t end() const { return close_; }

 private:
  /// Appends a message without the token that ends it.
  void begin(BPE::Encoder& encoder, std::vector<int32_t>& ids, const ChatMessage& message) const;

  const BPE* bpe_;
  ChatFormat format_;
  // The tokens before a conversation, before a role, after a role and after a text; -1: the format
  // has no such token.
  int64_t first_ = -1, open_ = -1, opened_ = -1, close_ = -1;
  std::string after_role_, after_message_;
  bool may_prepend_space_ =
      true;  // whether the tokenizer may put a space before text that follows a special token
};

/// Returns a description of a tokenizer's chat template or, if it has none, of the format that its
/// special tokens imply; "" if they imply none.
std::string describe_chat(const Tokenizer& tokenizer);
/// Sets a tokenizer's chat template to ChatML ("chatml"), Llama 3's ("llama3") or the Jinja
/// template in a file. If the template writes ChatML or Llama 3's format, the token that ends its
/// answers becomes the tokenizer's eos_token and one of its end ids. Throws Exit::usage if the
/// tokenizer lacks the special tokens of that format, or if the file does not exist.
void set_chat_template(Tokenizer& tokenizer, const std::string& choice);

}  // namespace lathe
