#include "data/prepare/table_layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>

#include "core/error.h"
#include "core/io/text.h"
#include "data/prepare/csv.h"
#include "data/prepare/row_encoder.h"

namespace lathe {
namespace {

using Row = std::vector<std::string>;

constexpr size_t rows_to_read = 1000, cells_to_read = 1 << 18;

bool is_text_cell(const std::string& cell) { return !cell.empty() && !csv_number(cell); }

/// Finds the layout of a table from its first lines and from the columns that the options name.
class LayoutFinder {
 public:
  LayoutFinder(const std::string& file, std::string_view text, const TableOptions& options);
  TableLayout result() const;

 private:
  size_t column_of(const std::string& flag, const std::string& which);
  void assign(ColumnRole role, const std::string& flag, const std::vector<std::string>& which);
  bool is_header() const;
  void check_names() const;
  std::string where() const { return str(file_, ":", line_); }

  std::string file_;
  int64_t line_ = 1;
  char separator_;
  std::vector<Row> rows_;
  size_t columns_ = 0, target_ = 0;
  bool is_named_ = false;              // an option names a column, so there is a header
  bool seems_to_have_header_ = false;  // the first line is a header, whatever the options are
  std::vector<ColumnRole> roles_;
  std::set<size_t> categories_;
  std::string missing_;
};

LayoutFinder::LayoutFinder(const std::string& file, std::string_view text,
                           const TableOptions& options)
    : file_(file),
      separator_(options.separator != 0 ? options.separator : find_separator(file, text, ',')),
      missing_(options.missing) {
  CsvReader reader(text, file, separator_);
  std::vector<std::string_view> fields;
  size_t most = rows_to_read;
  while (rows_.size() < most && reader.next(fields)) {
    if (rows_.empty()) line_ = reader.line();
    if (!rows_.empty() && fields.size() != rows_[0].size()) break;
    rows_.emplace_back(fields.begin(), fields.end());
    most = std::clamp<size_t>(cells_to_read / fields.size(), 2, rows_to_read);
  }

  if (rows_.empty()) fail(Exit::data, file, " has no lines");
  columns_ = rows_[0].size();
  if (columns_ < 2)
    fail(Exit::data, where(),
         " has one column, but a table needs columns for the inputs and the target; set the "
         "character between columns with --separator");

  roles_.assign(columns_, ColumnRole::input);
  target_ = columns_;  // is_header() then treats all columns alike
  seems_to_have_header_ = is_header();
  target_ = column_of("target", options.target);
  roles_[target_] = ColumnRole::target;
  if (!options.id.empty()) assign(ColumnRole::id, "id", {options.id});
  assign(ColumnRole::dropped, "drop", options.drop);
  for (const std::string& which : options.categories) {
    const size_t c = column_of("category", which);
    if (roles_[c] != ColumnRole::input)
      fail(Exit::usage, "--category ", which,
           " is not an input column, because another option uses it; leave one of the options out");
    categories_.insert(c);
  }
  if (std::find(roles_.begin(), roles_.end(), ColumnRole::input) == roles_.end())
    fail(Exit::usage, file, " has no columns left for inputs; drop fewer of them");
}

/// Returns the column that an option gives by name or by number. A number in the option is the
/// number of a column, unless the first line is a header anyway and has that number as a name.
size_t LayoutFinder::column_of(const std::string& flag, const std::string& which) {
  const Row& first = rows_[0];
  size_t place = 0;
  const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), place);
  const bool whole = error == std::errc() && end == which.data() + which.size();

  if (flag == "target" && (which == "last" || which == "first"))
    return which == "last" ? columns_ - 1 : 0;
  const auto named = std::find(first.begin(), first.end(), which);
  const bool is_number = whole && place >= 1 && place <= columns_ && !seems_to_have_header_;
  if (named != first.end() && !is_number) {
    if (std::count(first.begin(), first.end(), which) > 1)
      fail(Exit::data, where(), " has the name ", quoted(which), " several times; rename a column");
    is_named_ = true;
    return static_cast<size_t>(named - first.begin());
  }
  if (whole && place >= 1 && place <= columns_) return place - 1;
  fail(Exit::usage, "--", flag, " ", which, " is not a column of ", file_, "; give ",
       flag == "target" ? "last, first, " : "", "a name of its first line, or a number from 1 to ",
       columns_);
}

void LayoutFinder::assign(ColumnRole role, const std::string& flag,
                          const std::vector<std::string>& which) {
  for (const std::string& name : which) {
    const size_t c = column_of(flag, name);
    if (roles_[c] != ColumnRole::input && roles_[c] != role)
      fail(Exit::usage, "--", flag, " ", name, " is the ",
           roles_[c] == ColumnRole::target ? "target" : "id", " too; leave one of the options out");
    roles_[c] = role;
  }
}

bool LayoutFinder::is_header() const {
  if (is_named_) return true;
  const Row& first = rows_[0];
  const Row* second = rows_.size() > 1 ? &rows_[1] : nullptr;

  // Returns the first cell of a column, below the first line, that is not empty.
  const auto below = [&](size_t c) -> const std::string* {
    for (size_t r = 1; r < rows_.size(); ++r) {
      if (!rows_[r][c].empty()) return &rows_[r][c];
    }
    return nullptr;
  };

  bool has_text = false, occurs_again = false;
  std::vector<double> numbers;  // numbers in the first line
  // pandas numbers columns that have no names. A row of fewer than five columns may be data that
  // happens to be 0, 1, 2.
  bool counts = columns_ >= 5;
  for (size_t c = 0; c < columns_; ++c) {
    const auto number = csv_number(first[c]);
    if (number) numbers.push_back(*number);
    counts = counts && number == static_cast<double>(c);
    if (!is_text_cell(first[c])) continue;
    if (c != target_) {
      has_text = true;
      const std::string* const next = below(c);
      if (next == nullptr || !is_text_cell(*next)) return true;
    }
    for (size_t r = 1; r < rows_.size(); ++r)
      occurs_again = occurs_again || rows_[r][c] == first[c];
  }
  if (counts) return true;

  // A category is likely to occur again below, but a column's name is not. Names may be integers,
  // such as years, or ascending numbers, such as wavelengths, but not a single 0.5.
  const bool has_fraction =
      std::ranges::any_of(numbers, [](double x) { return x != std::floor(x); });
  const bool ascends = numbers.size() >= 3 &&
                       std::ranges::adjacent_find(numbers, std::greater_equal<>()) == numbers.end();
  if (has_text) return !occurs_again && (!has_fraction || ascends);
  // A text above a number in the target column is the column's name, not a class.
  return target_ < columns_ && is_text_cell(first[target_]) && second != nullptr &&
         csv_number((*second)[target_]);
}

void LayoutFinder::check_names() const {
  std::set<std::string> seen;
  for (size_t c = 0; c < columns_; ++c) {
    const std::string& name = rows_[0][c];
    if (roles_[c] == ColumnRole::dropped) continue;
    if (name.empty() && c == target_)
      fail(Exit::data, where(), ": column ", c + 1,
           ", the target, has no name in the header line; ",
           "give it a name, or make another column the target, as in --target ", c == 0 ? 2 : c,
           " --drop ", c + 1);
    if (name.empty())
      fail(Exit::data, where(), ": column ", c + 1,
           " has no name in the header line, as is common for a column of line numbers; give it a "
           "name, or leave it out with --drop ",
           c + 1);
    if (!is_utf8(name))
      fail(Exit::data, where(), ": column ", c + 1,
           " has a name that is not UTF-8; convert the file");
    if (!seen.insert(name).second)
      fail(Exit::data, where(), ": column ", c + 1, " has the name ", quoted(name),
           ", which another column has too; rename it, or leave it out with --drop ", c + 1);
  }
}

TableLayout LayoutFinder::result() const {
  TableLayout layout{
      .format = {.separator = separator_, .has_header = is_header(), .missing = missing_},
      .is_undecided = std::vector<bool>(columns_),
      .is_forced = std::vector<bool>(columns_),
      .target = target_};
  if (layout.format.has_header) check_names();

  const size_t data = layout.format.has_header ? 1 : 0;
  for (size_t c = 0; c < columns_; ++c) {
    const std::string cell = rows_.size() > data ? rows_[data][c] : "";
    const bool is_input = roles_[c] == ColumnRole::input, is_forced = categories_.contains(c);
    // The name of a dropped column was not checked, and is not needed. Leave a name out if it is
    // not UTF-8.
    const bool named = layout.format.has_header && is_utf8(rows_[0][c]);
    layout.format.columns.push_back({.name = named ? rows_[0][c] : "",
                                     .role = roles_[c],
                                     .is_text = is_input && (is_forced || is_text_cell(cell))});
    layout.is_forced[c] = is_forced;
    layout.is_undecided[c] = is_input && !is_forced && cell.empty() && missing_ != "error";
  }
  return layout;
}

}  // namespace

TableLayout find_layout(const std::string& file, std::string_view text,
                        const TableOptions& options) {
  return LayoutFinder(file, text, options).result();
}

}  // namespace lathe
