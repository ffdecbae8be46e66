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

Conversation read_chat(const simdjson::dom::array& messages, const std::string& where) {
  Conversation chat{.messages = {}, .is_chat = true};
  bool answered = false;
  for (const simdjson::dom::element element : messages) {
    simdjson::dom::object message;
    if (element.get(message) != simdjson::SUCCESS)
      fail(Exit::data, where, " has a message that is no object");
    const std::string role = string_in(message, "role", where + ": a message");
    if (role.empty() || role.find_first_of("<>|\n") != std::string::npos)
      fail(Exit::data, where, ": \"", role, "\" can't be a role; take system, user and assistant");
    chat.messages.push_back({role, string_in(message, "content", where + ": a message")});
    answered = answered || role == "assistant";
  }
  if (!answered)
    fail(Exit::data, where, " has no message of the assistant, and so nothing to learn");
  return chat;
}

}  // namespace

void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f) {
  const std::string what =
      str("is no conversation: it needs a list \"", source.field,
          "\" of messages (name it with --field), or \"prompt\" and \"completion\"");
  each_object(part, what, [&](uint64_t line, const simdjson::dom::object& json) {
    const std::string where = str(part.file, ":", line);
    simdjson::dom::array messages;
    std::string_view prompt, completion;
    if (json[source.field].get(messages) == simdjson::SUCCESS) {
      f(read_chat(messages, where));
    } else if (json["prompt"].get(prompt) == simdjson::SUCCESS &&
               json["completion"].get(completion) == simdjson::SUCCESS) {
      f({.messages = {{"prompt", std::string(prompt)}, {"completion", std::string(completion)}}});
    } else {
      fail(Exit::data, where, " ", what);
    }
  });
}

}  // namespace lathe
