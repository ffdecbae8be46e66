#include "data/prepare/conversations.h"

#include "data/prepare/json_lines.h"

namespace lathe {
namespace {

std::string string_in(const simdjson::dom::object& object, const char* key,
                      const std::string& where) {
  std::string_view found;
  if (object[key].get(found) != simdjson::SUCCESS)
    fail(Exit::data, where, " has no text in \"", key, "\"");
  return std::string(found);
}

/// Returns the role that a message is "from": ShareGPT's names of the user and the assistant.
std::string role_from(const std::string& name) {
  if (name == "human") return "user";
  return name == "gpt" || name == "chatgpt" ? "assistant" : name;
}

Conversation read_chat(const simdjson::dom::array& messages, const std::string& where) {
  Conversation chat{.messages = {}, .is_chat = true};
  bool answered = false;
  for (const simdjson::dom::element element : messages) {
    simdjson::dom::object message;
    if (element.get(message) != simdjson::SUCCESS)
      fail(Exit::data, where, " has a message that is no object");
    const std::string here = where + ": a message";
    const bool is_from = message["role"].error() != simdjson::SUCCESS &&
                         message["from"].error() == simdjson::SUCCESS;
    const std::string role =
        is_from ? role_from(string_in(message, "from", here)) : string_in(message, "role", here);
    if (role.empty() || role.find_first_of("<>|\n") != std::string::npos)
      fail(Exit::data, where, ": \"", role, "\" can't be a role; take system, user and assistant");
    chat.messages.push_back({role, string_in(message, is_from ? "value" : "content", here)});
    answered = answered || role == "assistant";
  }
  if (!answered)
    fail(Exit::data, where, " has no message of the assistant, and so nothing to learn");
  return chat;
}

/// Returns Alpaca's form as a chat. The input, which may be missing, follows the instruction.
Conversation read_instruction(const simdjson::dom::object& json, const std::string& where) {
  std::string question = string_in(json, "instruction", where);
  if (json["input"].error() == simdjson::SUCCESS) {
    const std::string input = string_in(json, "input", where);
    if (!input.empty()) question += "\n\n" + input;
  }
  return {.messages = {{"user", question}, {"assistant", string_in(json, "output", where)}},
          .is_chat = true};
}

/// Puts a "system" text of the whole line before a chat without a system message.
Conversation with_system(Conversation chat, const simdjson::dom::object& json,
                         const std::string& where) {
  if (json["system"].error() != simdjson::SUCCESS || chat.messages[0].role == "system") return chat;
  const std::string system = string_in(json, "system", where);
  if (!system.empty()) chat.messages.insert(chat.messages.begin(), {"system", system});
  return chat;
}

}  // namespace

void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f) {
  const std::string what =
      str("is no conversation: it needs a list \"", source.field,
          "\" of messages (name it with --field) or \"conversations\", or \"instruction\" and "
          "\"output\", or \"prompt\" and \"completion\"");
  each_object(part, what, [&](uint64_t line, const simdjson::dom::object& json) {
    const std::string where = str(part.file, ":", line);
    simdjson::dom::array messages;
    std::string_view prompt, completion;
    if (json[source.field].get(messages) == simdjson::SUCCESS ||
        json["conversations"].get(messages) == simdjson::SUCCESS) {
      f(with_system(read_chat(messages, where), json, where));
    } else if (json["instruction"].error() == simdjson::SUCCESS &&
               json["output"].error() == simdjson::SUCCESS) {
      f(with_system(read_instruction(json, where), json, where));
    } else if (json["prompt"].get(prompt) == simdjson::SUCCESS &&
               json["completion"].get(completion) == simdjson::SUCCESS) {
      f({.messages = {{"prompt", std::string(prompt)}, {"completion", std::string(completion)}}});
    } else {
      fail(Exit::data, where, " ", what);
    }
  });
}

}  // namespace lathe
