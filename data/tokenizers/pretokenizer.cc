// Implements Pretokenizer. Words of ASCII letters between ASCII characters are found without PCRE2,
// because each of the three known patterns matches such a word completely.
#include "data/tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "core/io/text.h"

namespace lathe {
namespace {

// The letters and numbers that Unicode 15 and 16 (DerivedGeneralCategory.txt) added to Unicode 14,
// which is the version of PCRE2 10.42.
constexpr const char* later_letters =
    R"(\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85})"
    R"(\x{10EC2}-\x{10EC4}\x{1123F}\x{11240}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7})"
    R"(\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155})"
    R"(\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
    R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr const char* later_numbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
    R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
// The characters with Unicode's property White_Space. The \s of PCRE2 also matches U+180E.
constexpr const char* white_space =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

/// Returns the pattern with \p{L}, \p{N}, \s and \S written as classes of Unicode 16. ASCII members
/// come first, since PCRE2 tests them with a table.
std::string expand(const std::string& pattern) {
  if (!literal_text(pattern).empty()) return pattern;
  std::string out;
  bool in_class = false;

  const auto add = [&](std::string_view open, std::string_view members, std::string_view more) {
    if (!in_class) out += open;
    out.append(members).append(more);
    if (!in_class) out += ']';
  };

  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = std::string_view(pattern).substr(i);
    if (rest.starts_with("\\p{L}")) {
      add("[", "A-Za-z\\p{L}", later_letters);
      i += 4;
    } else if (rest.starts_with("\\p{N}")) {
      add("[", "0-9\\p{N}", later_numbers);
      i += 4;
    } else if (rest.starts_with("\\s")) {
      add("[", white_space, "");
      i += 1;
    } else if (rest.starts_with("\\S") && !in_class) {
      add("[^", white_space, "");
      i += 1;
    } else if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      // Copy an escaped character, so that \[ and \] do not begin or end a class.
      out += pattern.substr(i++, 2);
    } else {
      if (pattern[i] == '[') in_class = true;
      if (pattern[i] == ']') in_class = false;
      out += pattern[i];
    }
  }
  return out;
}

std::string message_of(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

constexpr size_t window = size_t{1} << 20;  // how many bytes of a long text PCRE2 gets in one call

pcre2_code* code_of(const std::shared_ptr<void>& code) {
  return static_cast<pcre2_code*>(code.get());
}

}  // namespace

std::string literal_pattern(const std::string& text, const std::string& where) {
  if (text.find("\\E") != std::string::npos)
    fail(Exit::data, where, ": this build can't split at the text \"", printable_line(text), "\"");
  return "\\Q" + text + "\\E";
}

std::string literal_text(const std::string& pattern) {
  const bool is_literal =
      pattern.size() > 4 && pattern.starts_with("\\Q") && pattern.find("\\E") == pattern.size() - 2;
  return is_literal ? pattern.substr(2, pattern.size() - 4) : "";
}

std::string differing_syntax(const std::string& pattern) {
  if (!literal_text(pattern).empty()) return "";
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = std::string_view(pattern).substr(i);
    if (rest[0] == '\\') {
      if (rest.starts_with("\\h") || rest.starts_with("\\H") || rest.starts_with("\\Q"))
        return std::string(rest.substr(0, 2));
      ++i;
    } else if (!in_class) {
      in_class = rest[0] == '[';
    } else if (rest[0] == ']') {
      in_class = false;
    } else if (rest.starts_with("&&")) {
      return "&& in a character class";
    } else if (rest[0] == '[' && !rest.starts_with("[:")) {
      return "[ in a character class";
    }
  }
  return "";
}

Pretokenizer::Pretokenizer(const std::string& pattern, const std::string& where)
    : finds_words_(pattern == gpt2_pattern || pattern == llama3_pattern ||
                   pattern == qwen2_pattern) {
  const std::string expanded = expand(pattern);
  int code = 0;
  PCRE2_SIZE at = 0;
  // Refuse \C, which matches a single byte: matching skips PCRE2's UTF check, so no match may end
  // within a character.
  constexpr uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()),
                                       expanded.size(), options, &code, &at, nullptr);
  if (compiled == nullptr)
    fail(Exit::data, where, ": the pattern ", pattern, " can't be used: ", message_of(code));
  code_ = std::shared_ptr<void>(compiled,
                                [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // If the JIT compiler is missing, matching is slower but has the same results.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
}

struct Pretokenizer::Cursor::MatchData {
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};
void Pretokenizer::Cursor::Delete::operator()(MatchData* data) const {
  pcre2_match_data_free(data->match);
  pcre2_match_context_free(data->context);
  pcre2_jit_stack_free(data->stack);
  delete data;
}

Pretokenizer::Cursor::Cursor(const Pretokenizer& pretokenizer, std::string_view text)
    : pretokenizer_(pretokenizer),
      text_(text),
      data_(new MatchData{
          .match = pcre2_match_data_create(1, nullptr),
          .context = pcre2_match_context_create(nullptr),
          .stack = pcre2_jit_stack_create(size_t{32} << 10, size_t{64} << 20, nullptr)}) {
  if (data_->match == nullptr || data_->context == nullptr || data_->stack == nullptr)
    fail(Exit::memory, "no memory for the pre-tokenizer");
  pcre2_jit_stack_assign(data_->context, nullptr, data_->stack);
}

void Pretokenizer::Cursor::begin(std::string_view text) {
  text_ = text;
  at_ = valid_end_ = found_end_ = 0;
  limited_ = false;
}

void Pretokenizer::Cursor::find_valid(size_t begin, size_t most) {
  valid_end_ = utf8_end(text_, begin, most);
  limited_ = valid_end_ - begin >= most && valid_end_ < text_.size();
}

size_t Pretokenizer::Cursor::end_of_word(size_t begin) const {
  const auto is_letter = [this](size_t i) {
    return static_cast<unsigned char>((text_[i] | 32) - 'a') < 26;
  };
  size_t end = begin + (text_[begin] == ' ' ? 1 : 0);
  if (end == valid_end_ || !is_letter(end)) return 0;
  while (end < valid_end_ && is_letter(end)) ++end;
  if (end < valid_end_) return static_cast<signed char>(text_[end]) >= 0 ? end : 0;
  return limited_ ? 0 : end;
}

std::string_view Pretokenizer::Cursor::next() {
  if (at_ == text_.size()) return {};

  const size_t begin = at_;
  if (found_end_ > begin) {  // next() found this match with the previous piece
    at_ = std::exchange(found_end_, 0);
    return text_.substr(begin, at_ - begin);
  }

  if (begin >= valid_end_) {
    find_valid(begin, window);
    while (valid_end_ == at_ && at_ < text_.size()) find_valid(++at_, window);
    if (at_ > begin) return text_.substr(begin, at_ - begin);
  }
  if (pretokenizer_.finds_words_) {  // most pieces of most texts are words
    if (const size_t end = end_of_word(begin); end != 0) {
      at_ = end;
      return text_.substr(begin, at_ - begin);
    }
  }

  // The subject ends at the first byte that is not UTF-8, and a lookahead treats this as the end of
  // the text. For a long text, the subject is a window. If a match ends so close to the end of the
  // window that more text might change the match, the window grows.
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data_->match);
  for (size_t more = 2 * window;; more *= 2) {
    const int found = pcre2_match(
        code_of(pretokenizer_.code_), reinterpret_cast<PCRE2_SPTR>(text_.data()), valid_end_, begin,
        PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_->match, data_->context);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      fail(Exit::data, "the pre-tokenizer's pattern fails at byte ", begin,
           " of the text: ", message_of(found));

    const bool matched = found >= 0;
    if (limited_ && (!matched || place[1] + 64 > valid_end_)) {
      find_valid(begin, more);
      continue;
    }

    at_ = !matched ? valid_end_ : place[0] > begin ? place[0] : place[1];
    found_end_ = matched && place[0] > begin ? place[1] : 0;
    return text_.substr(begin, at_ - begin);
  }
}

}  // namespace lathe
