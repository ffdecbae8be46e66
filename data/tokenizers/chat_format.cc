#include "data/tokenizers/chat_format.h"

#include "data/tokenizers/jinja.h"
#include "data/tokenizers/jinja_values.h"

namespace lathe {
namespace {

/// A conversation with which a template is tested.
struct ChatProbe {
  std::vector<ChatMessage> messages;
  bool asks;  ///< whether the beginning of an answer follows (add_generation_prompt)
};

const std::vector<ChatProbe>& chat_probes() {
  static const std::vector<ChatProbe> probes{
      {{{"user", "one"}}, true},
      {{{"system", "rule"}, {"user", "one"}}, true},
      {{{"user", "one"}, {"assistant", "two"}, {"user", "three"}}, true},
      {{{"system", "rule"}, {"user", "one"}, {"assistant", "two"}}, false},
      {{{"user", "one"}, {"assistant", "two"}, {"user", "three"}, {"assistant", "four"}}, false},
      {{{"system", " rule\n"}, {"user", "\n one "}, {"assistant", " two\n\n"}}, false}};
  return probes;
}

std::string header_text(const ChatFormat& format, const std::string& role) {
  return format.llama3 ? "<|start_header_id|>" + role + "<|end_header_id|>\n\n"
                       : "<|im_start|>" + role + "\n";
}
std::string end_text(const ChatFormat& format) {
  return format.llama3 ? "<|eot_id|>" : "<|im_end|>\n";
}

std::string probe_text(const ChatFormat& format, const std::string& bos, const ChatProbe& probe) {
  std::string text = format.begins ? bos : "";
  for (const ChatMessage& m : written_messages(format, probe.messages))
    text += header_text(format, m.role) + m.text + end_text(format);
  return text + (probe.asks ? header_text(format, "assistant") : "");
}

/// Returns the system message that a template writes for a conversation without one.
std::optional<std::string> own_system(const ChatFormat& format, const std::string& bos,
                                      const std::string& text) {
  const std::string before = (format.begins ? bos : "") + header_text(format, "system");
  const size_t end = text.find(end_text(format));
  if (!text.starts_with(before) || end == std::string::npos || end < before.size())
    return std::nullopt;
  return text.substr(before.size(), end - before.size());
}

}  // namespace

const char* const chatml_template =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char* const llama3_template =
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] + "
    "'<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}";

std::vector<ChatMessage> written_messages(const ChatFormat& format,
                                          std::vector<ChatMessage> messages) {
  if (format.trims) {
    for (ChatMessage& m : messages) m.text = jinja::trimmed(m.text);
  }
  if (format.system && (messages.empty() || messages[0].role != "system"))
    messages.insert(messages.begin(), {"system", *format.system});
  return messages;
}

std::optional<ChatFormat> format_of(const TokenizerSettings& settings, const std::string& bos) {
  if (settings.chat_template.size() > (size_t{1} << 20)) return std::nullopt;
  const auto render = [&](const ChatProbe& probe) {
    Json messages = Json::array();
    for (const ChatMessage& m : probe.messages)
      messages.push_back({{"role", m.role}, {"content", m.text}});
    return render_jinja(settings.chat_template, {{"messages", messages},
                                                 {"add_generation_prompt", probe.asks},
                                                 {"bos_token", bos},
                                                 {"eos_token", settings.eos_token},
                                                 {"pad_token", settings.pad_token},
                                                 {"tools", nullptr},
                                                 {"documents", nullptr}});
  };

  std::vector<std::string> rendered;
  for (const ChatProbe& probe : chat_probes()) {
    const auto text = render(probe);
    if (!text) return std::nullopt;
    rendered.push_back(*text);
  }

  for (unsigned choice = 0; choice < 8; ++choice) {
    ChatFormat format{
        .llama3 = (choice & 4) != 0, .begins = (choice & 2) != 0, .trims = (choice & 1) != 0};
    if (format.begins && bos.empty()) continue;
    format.system = own_system(format, bos, rendered[0]);
    bool same = true;
    for (size_t i = 0; i < rendered.size(); ++i)
      same = same && rendered[i] == probe_text(format, bos, chat_probes()[i]);
    if (!same) continue;
    const ChatProbe tool{{{"user", "one"}, {"assistant", "two"}, {"tool", "three"}}, false};
    format.any_role = render(tool) == probe_text(format, bos, tool);
    return format;
  }
  return std::nullopt;
}

}  // namespace lathe
