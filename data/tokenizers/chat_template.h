// Conversations as ids: the templates that models of chats are trained with, known by their
// tokenizer's special tokens. No LibTorch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct ChatMessage {
  std::string role, text;  ///< "system", "user" or "assistant"
};

/// How a tokenizer's model writes conversations.
///   ChatML:  <|im_start|>ROLE\nTEXT<|im_end|>\n                          (Qwen, SmolLM)
///   Llama 3: <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>  behind <|begin_of_text|>
/// Texts are taken as text: what looks like a special token in them is none.
class ChatTemplate {
 public:
  /// Exit::usage where the tokenizer has the special tokens of neither; `where` begins the
  /// sentence, what to do ends it.
  ChatTemplate(const Tokenizer& tokenizer, const std::string& where, const std::string& what_to_do);

  /// The messages, and the beginning of an answer by the assistant.
  std::vector<int64_t> ask(const std::vector<ChatMessage>& messages) const;
  /// Appends a whole conversation, in which what the assistant says, and that it ends there, is to
  /// be learned: all other ids have token_mark.
  void append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                     std::vector<int32_t>& ids) const;
  /// The token that ends an answer.
  int64_t end() const { return close_; }

 private:
  /// A message without its end.
  void begin(BPE::Encoder& encoder, std::vector<int32_t>& ids, const ChatMessage& message) const;

  const BPE* bpe_;
  int64_t first_ = -1, open_ = -1, opened_ = -1, close_ = -1;  // -1: there is none
  std::string behind_role_, behind_message_;
};

}  // namespace lathe
