#include "data/tokenizers/chat_template.h"

#include "core/error.h"
#include "data/tokenizers/mark.h"

namespace lathe {
namespace {

/// Returns the id of a special token, or -1.
int64_t special(const BPE* bpe, const char* text) {
  return bpe == nullptr ? -1 : special_id(bpe->definition(), text);
}

}  // namespace

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const std::string& where,
                           const std::string& what_to_do)
    : bpe_(tokenizer.bpe()) {
  // ChatML has no token after the role, only a line break.
  open_ = special(bpe_, "<|im_start|>"), close_ = special(bpe_, "<|im_end|>");
  if (open_ >= 0 && close_ >= 0) {
    behind_role_ = behind_message_ = "\n";
    return;
  }

  // Otherwise the template is that of Llama 3, or none.
  open_ = special(bpe_, "<|start_header_id|>"), opened_ = special(bpe_, "<|end_header_id|>");
  close_ = special(bpe_, "<|eot_id|>"), first_ = special(bpe_, "<|begin_of_text|>");
  behind_role_ = "\n\n";
  if (open_ < 0 || opened_ < 0 || close_ < 0) {
    fail(Exit::usage, where,
         " has no chat template: its tokenizer has neither the special tokens <|im_start|> and "
         "<|im_end|> nor "
         "<|start_header_id|>, <|end_header_id|> and <|eot_id|>; ",
         what_to_do);
  }
}

void ChatTemplate::begin(BPE::Encoder& encoder, std::vector<int32_t>& ids,
                         const ChatMessage& m) const {
  ids.push_back(static_cast<int32_t>(open_));
  if (opened_ < 0) {
    encoder.encode(m.role + behind_role_ + m.text, ids, SpecialText::text);
    return;
  }
  encoder.encode(m.role, ids, SpecialText::text);
  ids.push_back(static_cast<int32_t>(opened_));
  encoder.encode(behind_role_ + m.text, ids, SpecialText::text);
}

std::vector<int64_t> ChatTemplate::ask(const std::vector<ChatMessage>& messages) const {
  BPE::Encoder encoder(*bpe_);
  std::vector<int32_t> ids;
  if (first_ >= 0) ids.push_back(static_cast<int32_t>(first_));
  for (const ChatMessage& m : messages) {
    begin(encoder, ids, m);
    ids.push_back(static_cast<int32_t>(close_));
    encoder.encode(behind_message_, ids, SpecialText::text);
  }
  begin(encoder, ids, {"assistant", ""});
  return {ids.begin(), ids.end()};
}

void ChatTemplate::append_marked(const std::vector<ChatMessage>& messages, BPE::Encoder& encoder,
                                 std::vector<int32_t>& ids) const {
  if (first_ >= 0) ids.push_back(mark_token(static_cast<int32_t>(first_)));
  for (const ChatMessage& m : messages) {
    const bool learned = m.role == "assistant";
    const size_t message = ids.size();
    // An answer is encoded apart from its role, as after the prompt that ask() makes.
    begin(encoder, ids, {m.role, learned ? "" : m.text});
    mark_tokens(ids, message);
    if (learned) encoder.encode(m.text, ids, SpecialText::text);
    ids.push_back(learned ? static_cast<int32_t>(close_)
                          : mark_token(static_cast<int32_t>(close_)));
    const size_t end = ids.size();
    encoder.encode(behind_message_, ids, SpecialText::text);
    mark_tokens(ids, end);
  }
}

}  // namespace lathe
