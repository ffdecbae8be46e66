// Reads instruction data and preferences from JSON Lines. Includes no LibTorch header.
//
// Instruction data are conversations, of which only the answers count toward the loss. A line of
// instruction data has one of the forms below. The comment of each_preference() describes the forms
// of preferences.
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
  std::vector<ChatMessage> messages;
  /// Whether a chat template formats the messages. If not, they are a prompt and its completion,
  /// whose texts are used unchanged.
  bool is_chat = false;
  std::string where{};  ///< where the conversation was read, as "file:line", for error messages
};

/// Calls f with the conversation of each line of a part, in order. A list of messages is read from
/// the field `source.field` or from "conversations". Throws Exit::data with file and line for a
/// line that is not a conversation or has no answer.
void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f);

/// Two answers to one prompt, of which one was preferred (Rafailov et al. 2023).
struct Preference {
  Conversation chosen, rejected;  ///< both are chats, or neither is
  /// Number of messages at the beginning of `chosen` and `rejected` that both share. The remaining
  /// messages, at least one in each, are the answers.
  size_t prompt = 1;
};

/// Calls f with the preference of each line of a part, in order. "chosen", "rejected" and "prompt"
/// are texts or lists of messages. The field "prompt" may be missing if "chosen" and "rejected" are
/// lists that begin with the prompt. These are the forms:
///   {"prompt": "...", "chosen": "...", "rejected": "..."}
///   {"prompt": [{"role": "user", ...}], "chosen": "...", "rejected": "..."}
///   {"prompt": "...", "chosen": [{"role": "assistant", ...}], "rejected": [...]}
///   {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}
/// If all fields are texts, they are used unchanged. If "prompt" is a list, a text in "chosen" or
/// "rejected" becomes a message of the assistant. If "prompt" is a text and "chosen" and "rejected"
/// are lists that begin with an answer, "prompt" becomes a message of the user. If these lists
/// begin with the prompt, a text in "prompt" must be the text of one of their messages. Throws
/// Exit::data with file and line for a line that is not a preference.
void each_preference(const Part& part, const std::function<void(const Preference&)>& f);

}  // namespace lathe
