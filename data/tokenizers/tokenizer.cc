#include "data/tokenizers/tokenizer.h"

#include <set>

#include "core/io/file.h"
#include "core/io/text.h"

namespace lathe {
namespace {

/// Calls f with each character; `remedy` ends the message about a byte that is not UTF-8.
template <class F>
void each_character(std::string_view text, Exit code, const char* remedy, F&& f) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = code_point_length(text, i);
    if (n == 0) {
      fail(code, "byte ", i, " of the text is not UTF-8; ", remedy);
    }
    f(text.substr(i, n));
    i += n;
  }
}

}  // namespace

Tokenizer Tokenizer::byte() { return {}; }

Tokenizer Tokenizer::characters(std::string_view text) {
  std::set<std::string, std::less<>> found;
  each_character(text, Exit::data, "convert it to UTF-8 or use --tokenizer byte",
                 [&](std::string_view c) {
                   if (!found.contains(c)) found.emplace(c);
                 });
  // UTF-8 strings sort in the order of their code points, so the set is sorted by code point.
  return from("char", {found.begin(), found.end()});
}

Tokenizer Tokenizer::from(const std::string& kind, const std::vector<std::string>& vocabulary) {
  if (kind != "byte" && kind != "char")
    fail(Exit::data, "there is no tokenizer \"", kind, "\"; this build has byte, char and bpe");
  Tokenizer t;
  t.kind_ = kind;
  t.vocabulary_ = vocabulary;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    if (!t.ids_.emplace(vocabulary[i], static_cast<int64_t>(i)).second) {
      fail(Exit::data, "the vocabulary has \"", vocabulary[i], "\" twice");
    }
  }
  return t;
}

Tokenizer Tokenizer::bpe(const fs::path& path) {
  if (lower_extension(path) == ".gguf")
    fail(Exit::data, path.string(),
         " is a GGUF file, not a tokenizer; make a run of it with `lathe import`, and name that "
         "run");
  Tokenizer t;
  t.kind_ = "bpe";
  t.bpe_ = std::make_shared<const BPE>(read_bpe(path), path.string());
  if (fs::is_directory(path)) t.settings_ = read_settings(path);
  return t;
}

Tokenizer Tokenizer::from_json(const Json& json, const char* kind_key, const std::string& where) {
  const auto kind = json_get<std::string>(json, kind_key, where, Exit::data);
  if (kind == "bpe") {
    Tokenizer t;
    t.kind_ = kind;
    t.bpe_ = std::make_shared<const BPE>(
        bpe_from_json(json_get<Json>(json, "bpe", where, Exit::data), where), where);
    t.settings_ = settings_from_json(json, where);
    return t;
  }

  std::vector<std::string> vocabulary;
  if (kind == "char")
    vocabulary = json_get<std::vector<std::string>>(json, "vocabulary", where, Exit::data);
  try {
    return from(kind, vocabulary);
  } catch (const Error& e) {
    fail(Exit::data, where, ": ", e.what());
  }
}

void Tokenizer::add_to_json(Json& json, const char* kind_key) const {
  json[kind_key] = kind_;
  if (kind_ == "char") json["vocabulary"] = vocabulary_;
  if (!bpe_) return;
  json["bpe"] = bpe_to_json(bpe_->definition());
  add_settings(json, settings_);
}

int32_t Tokenizer::document_end() const {
  if (!bpe_) return -1;
  const BoundaryTokens usual = boundary_tokens(bpe_->definition());
  if (usual.end >= 0) return usual.end;
  // The settings of a chat model may name the token that ends a turn, which occurs within
  // documents.
  const int32_t end = marks().end;
  return end == usual.turn_end ? -1 : end;
}

bool Tokenizer::ends_text(int64_t id) const {
  if (!bpe_ || id < 0) return false;
  const BoundaryTokens usual = boundary_tokens(bpe_->definition());
  return id == usual.end || id == usual.turn_end || id == marks().end ||
         std::ranges::find(settings_.end_ids, id) != settings_.end_ids.end();
}

BoundaryTokens Tokenizer::marks() const {
  if (!bpe_) return {};
  BoundaryTokens marks = boundary_tokens(bpe_->definition());
  if (!settings_.has_special_tokens) return marks;
  const auto id = [&](const std::string& name) { return name.empty() ? -1 : bpe_->id_of(name); };
  marks.begin = id(settings_.bos_token);
  // The settings may not name the token that the tokenizer puts before each text.
  if (marks.begin < 0) marks.begin = bpe_->definition().begin;
  marks.end = id(settings_.eos_token);
  marks.pad = id(settings_.pad_token);
  return marks;
}

bool Tokenizer::operator==(const Tokenizer& other) const {
  if (kind_ != other.kind_ || vocabulary_ != other.vocabulary_) return false;
  return bpe_ == other.bpe_ ||
         (bpe_ && other.bpe_ && bpe_->definition() == other.bpe_->definition());
}

int64_t Tokenizer::size() const {
  return kind_ == "byte" ? 256 : bpe_ ? bpe_->size() : static_cast<int64_t>(vocabulary_.size());
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, Exit code) const {
  std::vector<int64_t> out;
  out.reserve(text.size());

  if (kind_ == "byte") {
    for (char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }

  if (bpe_) {
    std::vector<int32_t> ids;
    try {
      BPE::Encoder(*bpe_).encode(text, ids);
    } catch (const Error& e) {
      // The encoder throws Exit::data, but the caller chooses the exit code.
      fail(code, e.what());
    }
    return {ids.begin(), ids.end()};
  }

  std::string key;
  each_character(text, code, "convert it to UTF-8", [&](std::string_view c) {
    key.assign(c);
    const auto found = ids_.find(key);
    if (found == ids_.end())
      fail(code, "the character \"", printable_line(key),
           "\" is not in the vocabulary of the training text");
    out.push_back(found->second);
  });
  return out;
}

std::string Tokenizer::piece(int64_t id) const {
  return bpe_ ? bpe_->decode({id}, /*begins=*/false) : decode({id});
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  if (bpe_) return bpe_->decode(ids);
  std::string text;
  for (int64_t id : ids) {
    if (id < 0 || id >= size())
      text += "\xEF\xBF\xBD";
    else if (kind_ == "byte")
      text += static_cast<char>(id);
    else
      text += vocabulary_[static_cast<size_t>(id)];
  }
  return text;
}

}  // namespace lathe
