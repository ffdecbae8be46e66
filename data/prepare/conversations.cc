#include "data/prepare/conversations.h"

#include <algorithm>

#include "core/io/text.h"
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

/// Returns whether an optional field is missing or null.
bool is_absent(const simdjson::dom::object& object, const char* key) {
  simdjson::dom::element found;
  return object[key].get(found) != simdjson::SUCCESS || found.is_null();
}

/// Returns the role for the value of "from": translates ShareGPT's names of the user and the
/// assistant, and returns other names unchanged.
std::string role_from(const std::string& name) {
  if (name == "human") return "user";
  return name == "gpt" || name == "chatgpt" ? "assistant" : name;
}

std::vector<ChatMessage> read_messages(const simdjson::dom::array& messages,
                                       const std::string& where) {
  std::vector<ChatMessage> read;
  for (const simdjson::dom::element element : messages) {
    simdjson::dom::object message;
    if (element.get(message) != simdjson::SUCCESS)
      fail(Exit::data, where, " has a message that is not an object");
    const std::string here = where + ": a message";
    const bool is_from = message["role"].error() != simdjson::SUCCESS &&
                         message["from"].error() == simdjson::SUCCESS;
    const std::string role =
        is_from ? role_from(string_in(message, "from", here)) : string_in(message, "role", here);
    if (role.empty() || role.find_first_of("<>|\n") != std::string::npos)
      fail(Exit::data, where, ": \"", role, "\" can't be a role; use system, user or assistant");
    simdjson::dom::array calls;
    if (message["tool_calls"].get(calls) == simdjson::SUCCESS && calls.size() > 0)
      fail(Exit::data, here,
           " has \"tool_calls\", which this build does not support; remove the conversation");
    read.push_back({role, string_in(message, is_from ? "value" : "content", here)});
  }
  return read;
}

bool is_answer(const ChatMessage& message) { return message.role == "assistant"; }

Conversation read_chat(const simdjson::dom::array& messages, const std::string& where) {
  Conversation chat{.messages = read_messages(messages, where), .is_chat = true};
  if (std::none_of(chat.messages.begin(), chat.messages.end(), is_answer)) {
    std::string roles;
    for (const ChatMessage& message : chat.messages)
      roles += (roles.empty() ? "" : ", ") + printable_line(message.role);
    fail(Exit::data, where, " has no message of the assistant, and so nothing to learn",
         roles.empty() ? "" : "; its roles are " + roles);
  }
  return chat;
}

/// Returns a line in Alpaca's form as a chat. "input", which may be missing, is appended to
/// "instruction".
Conversation read_instruction(const simdjson::dom::object& json, const std::string& where) {
  std::string question = string_in(json, "instruction", where);
  if (!is_absent(json, "input")) {
    const std::string input = string_in(json, "input", where);
    if (!input.empty()) question += "\n\n" + input;
  }
  return {.messages = {{"user", question}, {"assistant", string_in(json, "output", where)}},
          .is_chat = true};
}

/// Inserts the line's "system" text as the first message of a chat that does not begin with a
/// system message, and sets chat.where. Throws Exit::data if the line has a "system" text and is
/// not a chat.
Conversation with_system(Conversation chat, const simdjson::dom::object& json,
                         const std::string& where) {
  chat.where = where;
  if (is_absent(json, "system")) return chat;
  std::string_view given;
  if (!chat.is_chat && json["system"].get(given) == simdjson::SUCCESS && !given.empty()) {
    fail(Exit::data, where,
         ": \"system\" belongs to a chat; put its text into \"prompt\", or give \"messages\"");
  }
  if (!chat.is_chat || chat.messages[0].role == "system") return chat;
  const std::string system = string_in(json, "system", where);
  if (!system.empty()) chat.messages.insert(chat.messages.begin(), {"system", system});
  return chat;
}

bool is_same(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.text == b.text;
}

/// Returns the conversation that ends with the answer in the field `key`.
Conversation read_answer(const simdjson::dom::object& json, const char* key,
                         const std::string& where) {
  simdjson::dom::array prompt, answer;
  const bool prompt_is_list = json["prompt"].get(prompt) == simdjson::SUCCESS;
  if (json[key].get(answer) != simdjson::SUCCESS) {
    const std::string text = string_in(json, key, where);
    if (!prompt_is_list)
      return {.messages = {{"prompt", string_in(json, "prompt", where)}, {"completion", text}}};
    Conversation chat{.messages = read_messages(prompt, where), .is_chat = true};
    chat.messages.push_back({"assistant", text});
    return chat;
  }

  Conversation chat = read_chat(answer, where);
  std::vector<ChatMessage>& messages = chat.messages;
  if (prompt_is_list) {
    // The answer may repeat the messages of the prompt.
    const auto before = read_messages(prompt, where);
    const bool repeats = messages.size() > before.size() &&
                         std::equal(before.begin(), before.end(), messages.begin(), is_same);
    if (!repeats) messages.insert(messages.begin(), before.begin(), before.end());
  } else if (json["prompt"].error() == simdjson::SUCCESS) {
    const std::string text = string_in(json, "prompt", where);
    const auto has_it = [&](const ChatMessage& m) { return m.text == text; };
    if (is_answer(messages[0]))
      messages.insert(messages.begin(), {"user", text});
    else if (std::none_of(messages.begin(), messages.end(), has_it))
      fail(Exit::data, where, ": no message of \"", key, "\" has the text of \"prompt\"");
  }
  if (!is_answer(messages.back()))
    fail(Exit::data, where, ": \"", key, "\" does not end with a message of the assistant");
  return chat;
}

Preference read_preference(const simdjson::dom::object& json, const std::string& where) {
  Preference p{with_system(read_answer(json, "chosen", where), json, where),
               with_system(read_answer(json, "rejected", where), json, where)};
  const std::vector<ChatMessage>&a = p.chosen.messages, &b = p.rejected.messages;
  if (p.chosen.is_chat != p.rejected.is_chat)
    fail(Exit::data, where, ": \"chosen\" and \"rejected\" must both be texts or both lists");
  if (!p.chosen.is_chat) {
    if (a[0].text.empty()) fail(Exit::data, where, " has an empty prompt");
    return p;
  }

  const size_t most = std::min(a.size(), b.size()) - 1;
  p.prompt = 0;
  while (p.prompt < most && is_same(a[p.prompt], b[p.prompt])) ++p.prompt;
  if (p.prompt == 0)
    fail(Exit::data, where, ": \"chosen\" and \"rejected\" do not begin with the same prompt");
  return p;
}

}  // namespace

void each_preference(const Part& part, const std::function<void(const Preference&)>& f) {
  each_object(part, "is not a preference: it needs \"prompt\", \"chosen\" and \"rejected\"",
              [&](uint64_t line, const simdjson::dom::object& json) {
                f(read_preference(json, str(part.file, ":", line)));
              });
}

void each_conversation(const Part& part, const DocumentSource& source,
                       const std::function<void(const Conversation&)>& f) {
  const std::string what =
      str("is not a conversation: it needs a list \"", source.field,
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
      f(with_system(
          {.messages = {{"prompt", std::string(prompt)}, {"completion", std::string(completion)}}},
          json, where));
    } else {
      fail(Exit::data, where, " ", what);
    }
  });
}

}  // namespace lathe
