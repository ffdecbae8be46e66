#include "data/prepare/encode_documents.h"

#include <optional>

#include "core/io/text.h"
#include "data/prepare/conversations.h"
#include "data/tokenizers/mark.h"

namespace lathe {
namespace {

using FilterResult = EncodedDocument::FilterResult;

FilterResult filter_result_of(std::string_view text, const DocumentOptions& o) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return FilterResult::empty;
  if (text.size() < o.min_bytes) return FilterResult::too_short;
  return text.size() > o.max_bytes ? FilterResult::too_long : FilterResult::kept;
}

/// Appends the ids of texts and of document ends.
class Writer {
 public:
  Writer(const DocumentOptions& o, BPE::Encoder* encoder, std::vector<int32_t>& ids)
      : tokenizer_(o.tokenizer),
        encoder_(encoder),
        ids_(ids),
        marks_conversations_(o.has_val_tail()) {}

  /// Appends a text. `begins`: whether the text is the beginning of its document.
  void text(std::string_view text, bool begins = true) {
    if (encoder_ != nullptr) return encoder_->encode(text, ids_, SpecialText::text, begins);
    for (const char c : text) ids_.push_back(static_cast<unsigned char>(c));
  }
  void end(bool learned) {
    const int32_t id = encoder_ != nullptr ? tokenizer_.document_end() : '\n';
    if (id >= 0) ids_.push_back(learned ? id : mark_token(id));
  }
  void conversation(const Conversation& c, const std::string& where) {
    const size_t row = ids_.size();
    answer(c, where, /*prompt=*/0);
    if (marks_conversations_) begin_row(row);
    // A chat's last answer already ends with a token that counts toward the loss, so the document's
    // end token does not count.
    if (c.is_chat) end(/*learned=*/false);
  }
  void preference(const Preference& p, const std::string& where) {
    for (const Conversation* c : {&p.chosen, &p.rejected}) {
      const size_t row = ids_.size();
      answer(*c, where, p.prompt);
      begin_row(row);
    }
  }

 private:
  /// Marks token `at` as the first token of a conversation.
  void begin_row(size_t at) {
    if (at < ids_.size())
      ids_[at] = static_cast<int32_t>(static_cast<uint32_t>(ids_[at]) | token_begin);
  }
  /// Appends a chat, whose first `prompt` messages do not count toward the loss. For a conversation
  /// that is not a chat, appends the prompt, the completion and the end of the document instead.
  void answer(const Conversation& c, const std::string& where, size_t prompt) {
    if (c.is_chat) {
      if (!chat_)
        chat_.emplace(tokenizer_, where, "give another as --tokenizer, or set --chat-template");
      chat_->check_roles(c.messages, c.where);
      return chat_->append_marked(c.messages, *encoder_, ids_, prompt);
    }
    const size_t begin = ids_.size();
    // Begin with the token that generation also puts before a prompt.
    if (encoder_ != nullptr && tokenizer_.prompt_begin() >= 0)
      ids_.push_back(tokenizer_.prompt_begin());
    text(c.messages[0].text);
    mark_tokens(ids_, begin);
    text(c.messages[1].text, /*begins=*/c.messages[0].text.empty());
    end(/*learned=*/true);
  }

  const Tokenizer& tokenizer_;
  BPE::Encoder* encoder_;
  std::vector<int32_t>& ids_;
  /// Whether the validation split is the last part of the tokens. It then begins with a
  /// conversation, so the first id of each conversation gets token_begin until the split is chosen.
  bool marks_conversations_;
  std::optional<ChatTemplate> chat_;
};

/// The texts of all messages of a document, and the texts with their roles.
struct MessageTexts {
  std::string text{}, with_roles{};

  void add(const ChatMessage& m) {
    text += m.text + "\n";
    with_roles += m.role + '\0' + m.text + '\0';
  }
  EncodedDocument document(const DocumentOptions& o) const {
    return {.begins = true,
            .ends = true,
            .bytes = text.size(),
            .repaired = 0,
            .digest = digest(with_roles),
            .result = filter_result_of(text, o),
            .ids_end = 0};
  }
};

void encode_conversations(const Part& part, const DocumentOptions& o, Writer* writer,
                          EncodedPart& made) {
  each_conversation(part, o.source, [&](const Conversation& c) {
    MessageTexts texts;
    for (const ChatMessage& m : c.messages) texts.add(m);
    const EncodedDocument d = texts.document(o);
    if (d.result == FilterResult::kept && writer != nullptr) writer->conversation(c, part.file);
    made.documents.push_back(d);
    made.documents.back().ids_end = made.ids.size();
  });
}

void encode_preferences(const Part& part, const DocumentOptions& o, Writer* writer,
                        EncodedPart& made) {
  each_preference(part, [&](const Preference& p) {
    MessageTexts texts, rejected;
    for (const ChatMessage& m : p.rejected.messages) rejected.add(m);
    for (const ChatMessage& m : p.chosen.messages) texts.add(m);
    const bool is_same = texts.with_roles == rejected.with_roles;
    for (size_t i = p.prompt; i < p.rejected.messages.size(); ++i)
      texts.add(p.rejected.messages[i]);

    EncodedDocument d = texts.document(o);
    if (is_same) d.result = FilterResult::same_answers;
    if (d.result == FilterResult::kept && writer != nullptr) writer->preference(p, part.file);
    d.ids_end = made.ids.size();
    made.documents.push_back(d);
  });
}

void encode_texts(const Part& part, const DocumentOptions& o, Writer* writer, EncodedPart& made) {
  std::string repaired;
  each_document(part, o.source, [&](std::string_view text) {
    EncodedDocument d{.begins = made.documents.empty() ? part.begins : true,
                      .ends = true,
                      .bytes = 0,
                      .repaired = 0,
                      .digest = {},
                      .result = FilterResult::kept,
                      .ids_end = 0};
    // A part that ends within a document contains only that document.
    d.ends = part.ends;

    if (!is_utf8(text)) {
      if (!o.repair) {
        const size_t at = utf8_end(text, 0);
        fail(Exit::data, part.file, ": byte ", at, " of a document in the part that begins at ",
             part.jsonl ? "line " : "byte ", part.place,
             " is not UTF-8; convert it, or give --invalid repair");
      }
      repaired = text;
      d.repaired = repair_utf8(repaired);
      text = repaired;
    }

    d.bytes = text.size();
    // Filter and digest only complete documents. If an option needs complete documents, PartReader
    // does not cut them.
    if (d.begins && d.ends) {
      d.result = filter_result_of(text, o);
      d.digest = digest(text);
    }

    if (d.result == FilterResult::kept && writer != nullptr) {
      writer->text(text, d.begins);
      if (d.ends) writer->end(/*learned=*/true);
    }

    d.ids_end = made.ids.size();
    made.documents.push_back(d);
  });
}

}  // namespace

Encoders::Encoder Encoders::borrow() {
  if (bpe_ == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<BPE::Encoder>(*bpe_);
  Encoder one = std::move(free_.back());
  free_.pop_back();
  return one;
}
void Encoders::give_back(Encoder one) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(one));
}

EncodedPart encode(const Part& part, const DocumentOptions& o, Encoders& encoders, bool with_ids) {
  EncodedPart made{.input = digest(part.text), .documents = {}, .ids = {}};
  Encoders::Encoder encoder = with_ids ? encoders.borrow() : nullptr;
  Writer writer(o, encoder.get(), made.ids);
  const auto encode = o.source.format == "instructions"  ? encode_conversations
                      : o.source.format == "preferences" ? encode_preferences
                                                         : encode_texts;
  encode(part, o, with_ids ? &writer : nullptr, made);
  if (encoder) encoders.give_back(std::move(encoder));
  return made;
}

}  // namespace lathe
