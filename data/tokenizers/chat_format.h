// The formats in which chat models write conversations, and templates that write them. No LibTorch
// header.
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
  bool llama3 = false;                  ///< else ChatML
  bool begins = false;                  ///< begins with the token that begins texts
  bool trims = false;                   ///< texts lose white space at both ends
  std::optional<std::string> system{};  ///< the system message of conversations without one
  bool any_role = true;                 ///< roles other than system, user and assistant are alike
};

/// Templates that write the two formats, in Jinja.
extern const char* const chatml_template;
extern const char* const llama3_template;

/// Returns the messages as the format writes them: with its system message, and trimmed.
std::vector<ChatMessage> written_messages(const ChatFormat& format,
                                          std::vector<ChatMessage> messages);
/// Renders a few conversations with the chat template of `settings`, and returns the format of the
/// results; nullopt if it is neither. `bos` is the token that begins texts, or "".
std::optional<ChatFormat> format_of(const TokenizerSettings& settings, const std::string& bos);

}  // namespace lathe
