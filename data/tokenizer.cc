#include "data/tokenizer.h"

#include <set>

#include "core/io/text.h"

namespace lathe {
namespace {

template <class F>
void each_character(std::string_view text, Exit code, F&& f) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = code_point_length(text, i);
    if (n == 0) {
      fail(code, "byte ", i, " of the text is not UTF-8; convert it to UTF-8 or use --tokenizer byte");
    }
    f(text.substr(i, n));
    i += n;
  }
}

}  // namespace

Tokenizer Tokenizer::byte() { return {}; }

Tokenizer Tokenizer::characters(std::string_view text) {
  std::set<std::string, std::less<>> found;
  each_character(text, Exit::data, [&](std::string_view c) {
    if (!found.contains(c)) found.emplace(c);
  });
  // Bytes of UTF-8 sort as code points do.
  return from("char", {found.begin(), found.end()});
}

Tokenizer Tokenizer::from(const std::string& kind, const std::vector<std::string>& vocabulary) {
  if (kind != "byte" && kind != "char")
    fail(Exit::data, "there is no tokenizer \"", kind, "\"; this build has byte and char");
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

std::vector<int64_t> Tokenizer::encode(std::string_view text, Exit code) const {
  std::vector<int64_t> out;
  out.reserve(text.size());
  if (kind_ == "byte") {
    for (char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  std::string key;
  each_character(text, code, [&](std::string_view c) {
    key.assign(c);
    const auto found = ids_.find(key);
    if (found == ids_.end()) fail(code, "the character \"", key, "\" is not in the vocabulary of the training text");
    out.push_back(found->second);
  });
  return out;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
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
