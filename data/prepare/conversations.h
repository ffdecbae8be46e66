// Instruction data: conversations in JSON Lines, of which only the answers are learned; and
// preferences: two answers to one prompt. No LibTorch header.
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}, ...]}  (ShareGPT)
//   {"instruction": "...", "input": "...", "output": "..."}                            (Alpaca)
//   {"prompt": "...", "completion": "..."}
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/prepare/documents.h"
#include "data/tokenizers/chat_template.h"

namespace lathe {

struct Conversation {
  std::vector<ChatMessage> messages;  ///< two for a prompt and its completion
  bool is_chat = false;  ///< messages that need a template; else the texts are used unchanged
  std::string where{};   ///< file:line
};

/// Calls f with the conversation of each line of a part, in order. The messages are in the field
/// `source.field`, or in "conversations". Throws Exit::data with file and line for a line that is
/// not a conversation or has no answer.
void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f);

/// Two answers to one prompt, of which one was preferred. Rafailov et al. 2023.
struct Preference {
  Conversation chosen, rejected;  ///< both are chats, or neither is
  /// Number of messages that both begin with. The remaining messages, at least one in each, are the
  /// answers.
  size_t prompt = 1;
};

/// Calls f with the preference of each line of a part, in order. "chosen" and "rejected" are texts,
/// or lists of messages; "prompt" is a text or a list of messages, and may be missing where the
/// lists have it:
///   {"prompt": "...", "chosen": "...", "rejected": "..."}
///   {"prompt": [{"role": "user", ...}], "chosen": "...", "rejected": "..."}
///   {"prompt": "...", "chosen": [{"role": "assistant", ...}], "rejected": [...]}
///   {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}
/// Texts alone are used unchanged; with a list, a text is a message of the user or the assistant.
/// Throws Exit::data with file and line for a line that is not a preference.
void each_preference(const Part& part, const std::function<void(const Preference&)>& f);

}  // namespace lathe
