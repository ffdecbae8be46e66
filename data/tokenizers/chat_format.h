// Recognizes the format of conversations that a tokenizer's chat template writes: ChatML or Llama
// 3's. No LibTorch header.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/settings.h"

namespace lathe {

struct ChatMessage {
  std::string role, text;  ///< role: usually "system", "user" or "assistant"
};

/// A format of conversations.
///   ChatML:  <|im_start|>ROLE\nTEXT<|im_end|>\n                          (Qwen, SmolLM)
///   Llama 3: <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>
struct ChatFormat {
  bool llama3 = false;  ///< Llama 3's format; else ChatML
  bool begins = false;  ///< whether a conversation begins with the token that begins texts
  bool trims = false;   ///< whether white space at both ends of a message is removed
  std::optional<std::string> system{};  ///< the system message of conversations without one
  bool any_role = true;  ///< whether roles besides system, user and assistant are written alike
};

/// Jinja templates that write the two formats.
extern const char* const chatml_template;
extern const char* const llama3_template;

/// Returns the messages that the format writes: adds its system message, and trims the texts.
std::vector<ChatMessage> written_messages(const ChatFormat& format,
                                          std::vector<ChatMessage> messages);
/// Renders a few conversations with the chat template of `settings`, and returns the format of the
/// results; nullopt if it is neither ChatML nor Llama 3's. `bos` is the token that begins texts, or
/// "".
std::optional<ChatFormat> format_of(const TokenizerSettings& settings, const std::string& bos);

}  // namespace lathe
