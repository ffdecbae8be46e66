#include "data/prepare/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/text.h"

namespace lathe {
namespace {

constexpr size_t max_columns = 1'000'000, max_field = 1 << 16;

}  // namespace

CsvReader::CsvReader(std::string_view text, std::string file, char separator)
    : text_(text),
      file_(std::move(file)),
      separator_(separator),
      ends_{separator, '\n'},
      // If a tab is the separator, it is not a blank: a line of tabs is a row of empty fields.
      blanks_(separator == '\t' ? " \r" : " \t\r") {
  at_ = text_.size() - without_byte_order_mark(text_).size();
  if (text_.starts_with("\xFF\xFE") || text_.starts_with("\xFE\xFF"))
    fail(Exit::data, file_, " is UTF-16; save it as UTF-8");
  if (text_.find('\n') == std::string_view::npos && text_.find('\r') < text_.size() - 1) {
    fail(Exit::data, file_, " has lines that end in a carriage return alone; convert them: ",
         "tr '\\r' '\\n' < FILE > NEW");
  }
}

std::string CsvReader::where(size_t column) const {
  return str(file_, ":", row_line_, ": column ", column);
}

bool CsvReader::next(std::vector<std::string_view>& fields) {
  fields.clear();
  unquoted_.clear();

  // Skip blank lines.
  for (; at_ < text_.size(); ++at_) {
    const size_t end = text_.find_first_not_of(blanks_, at_);
    if (end == std::string_view::npos) at_ = text_.size();
    if (end == std::string_view::npos || text_[end] != '\n') break;
    at_ = end;
    ++line_;
  }

  if (at_ >= text_.size()) return false;
  row_line_ = line_;

  while (true) {
    if (fields.size() == max_columns)
      fail(Exit::data, file_, ":", row_line_, " has more than ", max_columns, " columns");
    fields.push_back(field(fields.size() + 1));
    if (at_ == text_.size()) return true;
    if (text_[at_++] == separator_) continue;
    ++line_;
    return true;
  }
}

// Leaves at_ at the separator or line end after the field, or at the end of the text.
std::string_view CsvReader::field(size_t column) {
  const auto too_long = [&] {
    fail(Exit::data, where(column), " has more than ", max_field, " bytes");
  };

  // A lone carriage return before a field is part of the field.
  const auto is_blank = [&](char c) { return blanks_.find(c) != std::string_view::npos; };
  size_t begin = at_;
  while (begin < text_.size() && text_[begin] != '\r' && is_blank(text_[begin])) ++begin;
  if (begin == text_.size() || text_[begin] != '"') {
    at_ = std::min(text_.find_first_of(std::string_view(ends_, 2), begin), text_.size());
    size_t end = at_;
    while (end > begin && is_blank(text_[end - 1])) --end;
    if (end - begin > max_field) too_long();
    return text_.substr(begin, end - begin);
  }

  // A quoted field is also a view of the text, unless doubled quotes require a copy.
  std::string* own = nullptr;
  size_t from = ++begin;  // start of the text that is not in *own yet
  std::string_view value;
  while (true) {
    const size_t quote = text_.find('"', from);
    if (quote == std::string_view::npos)
      fail(Exit::data, where(column), " begins a quote that never ends");
    if (quote - begin > max_field) too_long();
    const bool doubled = quote + 1 < text_.size() && text_[quote + 1] == '"';
    if (doubled && own == nullptr) own = &unquoted_.emplace_back();
    if (own != nullptr) own->append(text_, from, quote - from + (doubled ? 1 : 0));
    from = quote + (doubled ? 2 : 1);
    if (doubled) continue;
    value = own != nullptr ? std::string_view(*own) : text_.substr(begin, quote - begin);
    // A quoted field may contain line ends.
    for (const char c : text_.substr(begin, quote - begin)) line_ += c == '\n' ? 1 : 0;
    break;
  }

  at_ = std::min(text_.find_first_not_of(blanks_, from), text_.size());
  if (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n')
    fail(Exit::data, where(column), " has text after its closing quote");
  return value;
}

char find_separator(const std::string& file, std::string_view text, char usual) {
  const std::string extension = lower_extension(file);
  const bool is_tsv = extension == ".tsv" || extension == ".tab";
  const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
  bool quoted = false;
  std::string found;
  for (const char c : text.substr(begin, max_field)) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '\n') break;
    if (c == usual && !is_tsv) return usual;
    const bool is_candidate = c == ',' || c == ';' || c == '\t' || c == usual;
    if (is_candidate && found.find(c) == std::string::npos) found += c;
  }
  if (is_tsv) {
    const bool has_tab = found.find('\t') != std::string::npos;
    return has_tab || found.find(usual) == std::string::npos ? '\t' : usual;
  }
  return found.size() == 1 ? found[0] : usual;
}

std::string csv_field(std::string_view text) {
  // Readers remove blanks around a field without quotes.
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  const bool keeps_its_ends = text.empty() || (!is_blank(text.front()) && !is_blank(text.back()));
  const bool plain = keeps_its_ends && text.find_first_of(",\"\r\n") == std::string_view::npos;
  return plain ? std::string(text) : '"' + replace_all(text, "\"", "\"\"") + '"';
}

std::optional<double> csv_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  return x;
}

bool is_comma_number(std::string_view text) {
  std::string rest(text);
  return std::erase(rest, ',') > 0 && csv_number(rest);
}

}  // namespace lathe
