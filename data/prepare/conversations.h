// Instruction data: conversations in JSON Lines, of which only the answers are learned. No LibTorch
// header.
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
};

/// Calls f with the conversation of each line of a part, in order. The messages are in the field
/// `source.field`, or in "conversations". Throws Exit::data with file and line for a line that is
/// not a conversation or has no answer.
void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f);

}  // namespace lathe
