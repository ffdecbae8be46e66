#include "train/tasks/chat.h"

#include <algorithm>

#include "core/error.h"

namespace lathe {
namespace {

/// The id of a special token, or -1.
int64_t special(const BPE* bpe, const char* text) {
  if (bpe == nullptr) return -1;
  const auto& all = bpe->definition().special;
  const auto found = std::find_if(all.begin(), all.end(), [&](const SpecialToken& s) { return s.text == text; });
  return found == all.end() ? -1 : found->id;
}

}  // namespace

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const std::string& where) : bpe_(tokenizer.bpe()) {
  open_ = special(bpe_, "<|im_start|>"), close_ = special(bpe_, "<|im_end|>");
  if (open_ >= 0 && close_ >= 0) {
    behind_role_ = behind_message_ = "\n";
    return;
  }
  open_ = special(bpe_, "<|start_header_id|>"), opened_ = special(bpe_, "<|end_header_id|>");
  close_ = special(bpe_, "<|eot_id|>"), first_ = special(bpe_, "<|begin_of_text|>");
  behind_role_ = "\n\n";
  if (open_ < 0 || opened_ < 0 || close_ < 0) {
    fail(Exit::usage, where,
         " has no chat template: its tokenizer has neither the special tokens <|im_start|> and <|im_end|> nor "
         "<|start_header_id|>, <|end_header_id|> and <|eot_id|>; `lathe generate` continues a text of your own");
  }
}

void ChatTemplate::append(std::vector<int64_t>& ids, const std::string& text) const {
  std::vector<int32_t> own;
  BPE::Encoder(*bpe_).encode(text, own, SpecialText::text);
  ids.insert(ids.end(), own.begin(), own.end());
}

void ChatTemplate::begin(std::vector<int64_t>& ids, const ChatMessage& m) const {
  ids.push_back(open_);
  if (opened_ < 0) {
    append(ids, m.role + behind_role_ + m.text);
    return;
  }
  append(ids, m.role);
  ids.push_back(opened_);
  append(ids, behind_role_ + m.text);
}

std::vector<int64_t> ChatTemplate::ask(const std::vector<ChatMessage>& messages) const {
  std::vector<int64_t> ids;
  if (first_ >= 0) ids.push_back(first_);
  for (const ChatMessage& m : messages) {
    begin(ids, m);
    ids.push_back(close_);
    append(ids, behind_message_);
  }
  begin(ids, {"assistant", ""});
  return ids;
}

}  // namespace lathe
