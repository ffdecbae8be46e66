// Recognizes the format of conversations that a tokenizer's chat template writes: ChatML or Llama
// 3's. Includes no LibTorch header.
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
  bool llama3 = false;  ///< whether the format is Llama 3's; if false, it is ChatML
  bool begins = false;  ///< whether a conversation begins with the token that begins texts
  bool trims = false;   ///< whether white space at both ends of a message is removed
  std::optional<std::string> system{};  ///< added if there is no system message; nullopt: none
  bool any_role = true;  ///< whether other roles are written like system, user and assistant
};

/// Jinja templates that write the two formats.
extern const char* const chatml_template;
extern const char* const llama3_template;

/// Returns the messages that the format writes. Adds the format's system message if the first
/// message is not a system message, and trims the texts if the format does so.
std::vector<ChatMessage> written_messages(const ChatFormat& format,
                                          std::vector<ChatMessage> messages);
/// Renders a few conversations with the chat template of `settings`, and returns the format of the
/// results; nullopt if the results are neither in ChatML nor in Llama 3's format. `bos` is the
/// token that begins texts; "" if there is none.
std::optional<ChatFormat> format_of(const TokenizerSettings& settings, const std::string& bos);

}  // namespace lathe
