// Conversations as ids, in the templates of chat models, which are recognized by the special tokens
// of their tokenizers. No LibTorch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct ChatMessage {
  std::string role, text;  ///< "system", "user" or "assistant"
};

/// The format in which a tokenizer's model writes conversations.
///   ChatML:  <|im_start|>ROLE\nTEXT<|im_end|>\n                          (Qwen, SmolLM)
///   Llama 3: <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>  behind <|begin_of_text|>
/// Texts of messages are ordinary text, even where they look like a special token.
class ChatTemplate {
 public:
  /// Throws Exit::usage where the tokenizer has the special tokens of neither template; `where`
  /// begins the sentence, and what to do ends it.
  ChatTemplate(const Tokenizer& tokenizer, const std::string& where, const std::string& what_to_do);

  /// Returns the ids of the messages and of the beginning of an answer by the assistant.
  std::vector<int64_t> ask(const std::vector<ChatMessage>& messages) const;
  /// Appends a complete conversation. The assistant's texts, and the tokens that end them, are
  /// learned; all other ids have token_mark.
  void append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                     std::vector<int32_t>& ids) const;
  /// Returns the token that ends an answer.
  int64_t end() const { return close_; }

 private:
  /// Appends a message without its end.
  void begin(BPE::Encoder& encoder, std::vector<int32_t>& ids, const ChatMessage& message) const;

  const BPE* bpe_;
  int64_t first_ = -1, open_ = -1, opened_ = -1, close_ = -1;  // -1: the template has none
  std::string behind_role_, behind_message_;
};

}  // namespace lathe
