#include "data/tokenizers/chat_template.h"

#include "core/error.h"
#include "core/io/text.h"
#include "data/tokenizers/mark.h"

namespace lathe {
namespace {

/// Returns the id of a special token; -1 if there is none.
int64_t special(const BPE* bpe, const char* text) {
  return bpe == nullptr ? -1 : special_id(bpe->definition(), text);
}

}  // namespace

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const std::string& where,
                           const std::string& what_to_do)
    : bpe_(tokenizer.bpe()) {
  // A tokenizer with `first_without` puts a space only before the first part of a text. Here, each
  // part follows a special token, so no part is the first.
  if (bpe_ != nullptr)
    may_prepend_space_ = bpe_->definition().space_before != SpaceBefore::first_without;
  const TokenizerSettings& settings = tokenizer.settings();
  const bool has_template = !settings.chat_template.empty();
  const std::string bos =
      has_template && settings.has_special_tokens ? settings.bos_token : "<|begin_of_text|>";
  const bool is_chatml = special(bpe_, "<|im_start|>") >= 0 && special(bpe_, "<|im_end|>") >= 0;
  // If the tokenizer has no template, its special tokens determine the format.
  format_ = {.llama3 = !is_chatml, .begins = !is_chatml && special(bpe_, bos.c_str()) >= 0};
  if (has_template) {
    const auto found = format_of(settings, bos);
    if (!found) {
      fail(Exit::usage, where,
           ": the tokenizer's chat template writes neither ChatML nor Llama 3's format, and this "
           "build supports no other format; ",
           what_to_do);
    }
    format_ = *found;
  }

  // ChatML has no token after the role, only a line break.
  open_ = special(bpe_, format_.llama3 ? "<|start_header_id|>" : "<|im_start|>");
  close_ = special(bpe_, format_.llama3 ? "<|eot_id|>" : "<|im_end|>");
  after_role_ = format_.llama3 ? "\n\n" : "\n";
  if (format_.llama3)
    opened_ = special(bpe_, "<|end_header_id|>");
  else
    after_message_ = "\n";
  if (format_.begins) first_ = special(bpe_, bos.c_str());

  if (open_ < 0 || close_ < 0 || (format_.llama3 && opened_ < 0) ||
      (format_.begins && first_ < 0)) {
    if (has_template)
      fail(Exit::usage, where, ": the tokenizer lacks the special tokens of the chat template (",
           format_.llama3 ? "<|start_header_id|>, <|end_header_id|> and <|eot_id|>"
                          : "<|im_start|> and <|im_end|>",
           "); ", what_to_do);
    fail(Exit::usage, where,
         ": the tokenizer has no chat template, and neither the special tokens <|im_start|> and "
         "<|im_end|> nor <|start_header_id|>, <|end_header_id|> and <|eot_id|>; ",
         what_to_do);
  }
}

void ChatTemplate::check_roles(const std::vector<ChatMessage>& messages,
                               const std::string& where) const {
  for (const ChatMessage& m : messages) {
    if (format_.any_role || m.role == "user" || m.role == "assistant" || m.role == "system")
      continue;
    fail(Exit::data, where, " has a message of the role \"", printable_line(m.role),
         "\", which the tokenizer's chat template treats in a special way; this build supports "
         "only system, user and assistant");
  }
}

void ChatTemplate::begin(BPE::Encoder& encoder, std::vector<int32_t>& ids,
                         const ChatMessage& m) const {
  ids.push_back(static_cast<int32_t>(open_));
  if (opened_ < 0) {
    encoder.encode(m.role + after_role_ + m.text, ids, SpecialText::text, may_prepend_space_);
    return;
  }
  encoder.encode(m.role, ids, SpecialText::text, may_prepend_space_);
  ids.push_back(static_cast<int32_t>(opened_));
  encoder.encode(after_role_ + m.text, ids, SpecialText::text, may_prepend_space_);
}

std::vector<int64_t> ChatTemplate::encode_prompt(const std::vector<ChatMessage>& messages) const {
  BPE::Encoder encoder(*bpe_);
  std::vector<int32_t> ids;
  if (first_ >= 0) ids.push_back(static_cast<int32_t>(first_));
  for (const ChatMessage& m : written_messages(format_, messages)) {
    begin(encoder, ids, m);
    ids.push_back(static_cast<int32_t>(close_));
    encoder.encode(after_message_, ids, SpecialText::text, may_prepend_space_);
  }
  begin(encoder, ids, {"assistant", ""});
  return {ids.begin(), ids.end()};
}

void ChatTemplate::append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                                 std::vector<int32_t>& ids, size_t prompt) const {
  if (first_ >= 0) ids.push_back(mark_token(static_cast<int32_t>(first_)));
  const std::vector<ChatMessage> written = written_messages(format_, messages);
  // The format may have put a system message before the given messages.
  prompt += written.size() - messages.size();
  for (size_t i = 0; i < written.size(); ++i) {
    const ChatMessage& m = written[i];
    const bool learned = m.role == "assistant" && i >= prompt;
    const size_t message = ids.size();
    // Encode an answer separately from its role, as in generation, where it follows the prompt of
    // encode_prompt().
    begin(encoder, ids, {m.role, learned ? "" : m.text});
    mark_tokens(ids, message);
    if (learned) encoder.encode(m.text, ids, SpecialText::text, /*begins=*/false);
    ids.push_back(learned ? static_cast<int32_t>(close_)
                          : mark_token(static_cast<int32_t>(close_)));
    const size_t end = ids.size();
    encoder.encode(after_message_, ids, SpecialText::text, may_prepend_space_);
    mark_tokens(ids, end);
  }
}

std::string describe_chat(const Tokenizer& tokenizer) {
  const bool has_template = !tokenizer.settings().chat_template.empty();
  try {
    const ChatFormat format = ChatTemplate(tokenizer, "", "").format();
    const char* const origin =
        has_template ? ""
        : tokenizer.settings().templates.empty()
            ? ", inferred from the special tokens"
            : ", inferred from the special tokens, since no template is called \"default\"";
    return str(format.llama3 ? "Llama 3's format" : "ChatML", origin,
               format.system
                   ? ", with the system message \"" + printable_line(*format.system) + "\""
                   : "");
  } catch (const Error&) {
    return has_template ? "a template that is kept for exports; `lathe chat` does not follow it"
                        : "";
  }
}

void set_chat_template(Tokenizer& tokenizer, const std::string& choice) {
  if (tokenizer.bpe() == nullptr)
    fail(Exit::usage, "command line: --chat-template is for BPE tokenizers, and this one is ",
         tokenizer.kind(), "; leave it out");
  const bool is_known = choice == "chatml" || choice == "llama3";
  if (!is_known && !fs::is_regular_file(choice))
    fail(Exit::usage,
         "command line: --chat-template must be chatml, llama3, or a file with a Jinja template, "
         "and there is no file ",
         choice);

  TokenizerSettings s = tokenizer.settings();
  s.chat_template = choice == "chatml"   ? chatml_template
                    : choice == "llama3" ? llama3_template
                                         : read_file(choice, Exit::usage, uint64_t{1} << 20);
  s.templates.clear();
  s.from_template_file = false;
  if (!is_utf8(s.chat_template)) fail(Exit::usage, choice, " is not UTF-8");

  // If there is no tokenizer_config.json, use the tokens that usually begin and end a text.
  const auto& tokens = tokenizer.bpe()->definition().tokens;
  const auto name = [&](int32_t id) { return id < 0 ? "" : tokens[static_cast<size_t>(id)]; };
  if (!s.has_special_tokens) {
    const BoundaryTokens marks = tokenizer.marks();
    s.bos_token = choice == "llama3" ? "<|begin_of_text|>" : name(marks.begin);
    s.eos_token = name(marks.end);
    s.has_special_tokens = true;
  }
  const bool is_followed = format_of(s, s.bos_token).has_value();
  tokenizer.set_settings(s);
  if (!is_followed) return;

  const ChatTemplate chat(tokenizer, "command line: --chat-template: " + choice,
                          "give a tokenizer with them");
  s.eos_token = name(static_cast<int32_t>(chat.end()));
  s.add_end_id(chat.end());
  tokenizer.set_settings(s);
}

}  // namespace lathe
