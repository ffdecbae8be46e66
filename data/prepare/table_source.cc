#include "data/prepare/table_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "data/prepare/csv.h"
#include "data/prepare/row_encoder.h"
#include "data/prepare/table_layout.h"

namespace lathe {
namespace {

constexpr size_t nowhere = std::numeric_limits<size_t>::max();

/// Reads the rows of one file, and reports its bytes to a meter.
class RowReader {
 public:
  RowReader(const MappedFile& file, char separator, ProgressReporter& meter)
      : file_(file),
        name_(file.path().string()),
        meter_(meter),
        reader_(file.text(), name_, separator) {}

  bool next(std::vector<std::string_view>& fields) {
    if (reader_.at() - reported_ >= ProgressReporter::piece) report();
    if (reader_.next(fields)) return true;
    report();
    return false;
  }
  const std::string& name() const { return name_; }
  int64_t line() const { return reader_.line(); }

 private:
  // Advances the meter, and releases the memory of complete pieces, whose ends are multiples of
  // every page size.
  void report() {
    const auto whole = [](size_t at) {
      return at / ProgressReporter::piece * ProgressReporter::piece;
    };
    const size_t begin = whole(reported_), end = whole(reader_.at());
    if (end > begin) file_.release(file_.bytes().subspan(begin, end - begin));
    meter_.advance(reader_.at() - reported_);
    reported_ = reader_.at();
  }

  const MappedFile& file_;
  std::string name_;
  ProgressReporter& meter_;
  CsvReader reader_;
  size_t reported_ = 0;
};

std::vector<size_t> in_order(size_t columns) {
  std::vector<size_t> places(columns);
  for (size_t c = 0; c < columns; ++c) places[c] = c;
  return places;
}

std::string column_name(const TableColumn& column, size_t place) {
  return str("column ", place + 1,
             column.name.empty() ? "" : " (" + printable_line(column.name.substr(0, 100)) + ")");
}

class TableSource final : public ExampleSource {
 public:
  TableSource(const std::vector<std::string>& files, const TableOptions& options,
              const TableSource* like) {
    for (const auto& file : files) files_.emplace_back(file, Exit::data);
    layout_file_ = like != nullptr ? like->layout_file_ : files[0];
    layout_ = like != nullptr ? like->layout_ : find_layout(files[0], files_[0].text(), options);
  }

  std::vector<int64_t> sizes() const override { return {format().width()}; }
  const TableFormat* table() const override { return &format(); }
  std::string where() const override { return position(layout_.target); }
  uint64_t bytes() const override {
    uint64_t n = 0;
    for (const auto& file : files_) n += file.bytes().size();
    return n;
  }
  std::string layout() const override;
  void scan(ProgressReporter& meter) override;
  void set_fills(const std::vector<double>& by_input) override;
  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override;

 private:
  const TableFormat& format() const { return layout_.format; }
  std::string position(size_t c) const {
    return str(file_, ":", line_, ": ", column_name(format().columns[c], c));
  }
  void each_row(ProgressReporter& meter,
                const std::function<void(const std::vector<std::string_view>&)>& f);
  /// Returns whether a row is left out because its target or one of its inputs is empty (--missing
  /// drop).
  bool is_left_out(const std::vector<std::string_view>& fields) const;
  void scan_cell(std::string_view cell, size_t c, std::set<std::string>& values);
  void refuse_comma_numbers(size_t c, const std::set<std::string>& values) const;
  void give(const std::vector<double>& inputs, std::string_view target,
            const std::function<void(const RawExample&)>& f);

  std::vector<MappedFile> files_;
  std::string layout_file_;  // the file whose first lines determine the layout
  TableLayout layout_;
  std::string file_;
  int64_t line_ = 0, skipped_ = 0;
};

std::string TableSource::layout() const {
  const auto& columns = format().columns;
  std::string names;
  if (format().has_header) {
    for (size_t i = 0; i < std::min<size_t>(columns.size(), 8); ++i)
      names += (i > 0 ? ", " : "") + printable_line(columns[i].name);
  }
  std::string text = str(format().has_header ? "header line " + names : "no header line",
                         format().has_header && columns.size() > 8 ? ", ..." : "",
                         "; the target is ", column_name(columns[layout_.target], layout_.target));

  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].is_text)
      text +=
          str("; ", column_name(columns[c], c), " has ", columns[c].values.size(), " categories");
  }
  if (skipped_ > 0) text += str("; ", skipped_, " lines with empty cells are left out");
  return text;
}

/// Calls f with each row of data. Sets file_ and line_ to the row's position before the call.
void TableSource::each_row(ProgressReporter& meter,
                           const std::function<void(const std::vector<std::string_view>&)>& f) {
  const auto& columns = format().columns;
  std::vector<std::string_view> fields;
  for (const auto& file : files_) {
    RowReader rows(file, format().separator, meter);
    file_ = rows.name();
    for (bool first = format().has_header; rows.next(fields); first = false) {
      line_ = rows.line();
      if (fields.size() != columns.size()) {
        fail(Exit::data, file_, ":", line_, " has ", fields.size(),
             " columns, but the first line of ", layout_file_, " has ", columns.size(),
             "; give every line the same number of columns");
      }
      if (!first) {
        f(fields);
        continue;
      }

      // Every file must have the same header line, since other names would mean other columns.
      for (size_t c = 0; c < columns.size(); ++c) {
        if (columns[c].role != ColumnRole::dropped && fields[c] != columns[c].name)
          fail(Exit::data, file_, ":", line_, " has a different header line than ", layout_file_,
               "; give all files the same header line");
      }
    }
  }
}

bool TableSource::is_left_out(const std::vector<std::string_view>& fields) const {
  if (format().missing != "drop") return false;
  const auto& columns = format().columns;
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool is_read = columns[c].role == ColumnRole::input || c == layout_.target;
    if (is_read && fields[c].empty()) return true;
  }
  return false;
}

/// Collects the categories of text columns. If the first cell of a column is empty, decides by
/// later rows whether the column is text. Does not read the table if it has no such columns.
void TableSource::scan(ProgressReporter& meter) {
  auto& columns = layout_.format.columns;
  const auto is_scanned = [&](size_t c) { return columns[c].is_text || layout_.is_undecided[c]; };
  std::vector<size_t> scanned;
  for (size_t c = 0; c < columns.size(); ++c) {
    if (is_scanned(c)) scanned.push_back(c);
  }
  if (scanned.empty()) return;

  meter.begin("scanned", bytes());
  std::vector<std::set<std::string>> values(columns.size());
  each_row(meter, [&](const auto& fields) {
    if (is_left_out(fields)) return;
    for (const size_t c : scanned) scan_cell(fields[c], c, values[c]);
  });

  for (const size_t c : scanned) {
    if (layout_.is_undecided[c])
      fail(Exit::data, layout_file_, ": ", column_name(columns[c], c),
           " is empty in every line; leave it out with --drop ", c + 1);
    refuse_comma_numbers(c, values[c]);
    columns[c].values.assign(values[c].begin(), values[c].end());
  }
}

/// Refuses a column of numbers with commas, which would become categories.
void TableSource::refuse_comma_numbers(size_t c, const std::set<std::string>& values) const {
  if (layout_.is_forced[c] || values.empty() ||
      !std::all_of(values.begin(), values.end(), is_comma_number))
    return;
  fail(Exit::data, layout_file_, ": ", column_name(format().columns[c], c),
       " has numbers with commas, such as ", lathe::quoted(*values.begin()),
       "; write decimal points and no separators of thousands, or make categories of the column "
       "with --category ",
       c + 1);
}

void TableSource::scan_cell(std::string_view cell, size_t c, std::set<std::string>& values) {
  TableColumn& column = layout_.format.columns[c];
  if (layout_.is_undecided[c] && !cell.empty()) {
    layout_.is_undecided[c] = false;
    column.is_text = !csv_number(cell);
  }
  if (!column.is_text && !layout_.is_undecided[c]) return;

  if (csv_number(cell) && !layout_.is_forced[c])
    fail(Exit::data, position(c), " is the number ", quoted(cell),
         ", but earlier cells of the column are text",
         values.empty() ? "" : ", such as " + lathe::quoted(*values.begin()),
         "; repair one of them (--missing handles numbers that are missing, whose cells must "
         "be empty), or make categories of the column with --category ",
         c + 1);

  // An empty text cell is a category if empty cells are filled. Otherwise each() reports or skips
  // the row.
  const bool fills = format().missing == "mean" || format().missing == "median";
  if (cell.empty() && !fills) return;
  if (cell.size() > 1000) fail(Exit::data, position(c), " has more than 1000 bytes");
  if (!is_utf8(cell)) fail(Exit::data, position(c), " is not UTF-8; convert the file");
  values.emplace(cell);
  if (std::ssize(values) > max_column_values) {
    refuse_comma_numbers(c, values);
    fail(Exit::data, position(c), ": more than ", max_column_values,
         " different texts can't be categories; leave the column out with --drop ", c + 1,
         ", or carry it to predictions with --id ", c + 1);
  }
}

void TableSource::set_fills(const std::vector<double>& by_input) {
  size_t i = 0;
  for (TableColumn& column : layout_.format.columns) {
    if (column.width() == 1 && !column.is_text) column.fill = by_input.at(i);
    i += static_cast<size_t>(column.width());
  }
}

void TableSource::each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) {
  const RowEncoder encoder(format(), in_order(format().columns.size()));
  std::vector<double> inputs;
  skipped_ = 0;
  each_row(meter, [&](const auto& fields) {
    if (is_left_out(fields)) {
      ++skipped_;
      return;
    }
    inputs.clear();
    encoder.encode(fields, /*prepares=*/true, [&](size_t c) { return position(c); }, inputs);
    give(inputs, fields[layout_.target], f);
  });
}

void TableSource::give(const std::vector<double>& inputs, std::string_view target,
                       const std::function<void(const RawExample&)>& f) {
  if (target.empty())
    fail(Exit::data, where(),
         " is empty; fill it in, leave the line out, or leave out all such lines with --missing "
         "drop");
  const auto number = csv_number(target);
  if (!number) return f({.inputs = inputs, .targets = {}, .label = target});
  if (!std::isfinite(*number)) refuse_number(target, where(), /*prepares=*/true);
  f({.inputs = inputs, .targets = {&*number, 1}, .label = {}});
}

/// New rows with the columns of a format. A target column is ignored.
class NewRows final : public ExampleSource {
 public:
  NewRows(const std::string& file, const TableFormat& format)
      : file_(file, Exit::data),
        format_(format),
        separator_(find_separator(file, file_.text(), format.separator)) {
    CsvReader reader(file_.text(), file, separator_);
    std::vector<std::string_view> fields;
    if (!reader.next(fields)) fail(Exit::data, file, " has no lines");
    line_ = reader.line();
    width_ = fields.size();
    format_.has_header ? match_names(fields) : match_positions();
  }

  std::vector<int64_t> sizes() const override { return {format_.width()}; }
  uint64_t bytes() const override { return file_.bytes().size(); }
  std::string where() const override { return str(file_.path().string(), ":", line_); }
  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override;

 private:
  void match_names(const std::vector<std::string_view>& fields);
  void match_positions();

  MappedFile file_;
  const TableFormat& format_;
  char separator_;
  int64_t line_ = 0;
  size_t width_ = 0, id_ = nowhere;
  std::vector<size_t> places_;
};

void NewRows::match_names(const std::vector<std::string_view>& fields) {
  std::set<std::string_view> known;
  for (const TableColumn& column : format_.columns) {
    const auto found = std::find(fields.begin(), fields.end(), column.name);
    const bool is_there = found != fields.end() && !column.name.empty();
    known.insert(column.name);
    places_.push_back(is_there ? static_cast<size_t>(found - fields.begin()) : nowhere);
    if (column.role == ColumnRole::id) id_ = places_.back();
    if (column.role != ColumnRole::input) continue;
    if (!is_there)
      fail(Exit::data, where(), ": the column ", quoted(column.name),
           ", which the model needs, is not in the header line; add it");
    if (std::count(fields.begin(), fields.end(), column.name) > 1)
      fail(Exit::data, where(), " has the name ", quoted(column.name),
           " several times; rename a column");
  }

  std::string unknown;
  for (const std::string_view name : fields) {
    if (!known.contains(name)) unknown += (unknown.empty() ? "" : ", ") + quoted(name);
  }
  if (!unknown.empty())
    log_warn(file_.path().string(),
             ": columns that the model does not know are ignored: ", printable_line(unknown));
}

void NewRows::match_positions() {
  const size_t all = format_.columns.size();
  if (width_ != all && width_ + 1 != all)
    fail(Exit::data, where(), " has ", width_, " columns; the training table had ", all,
         ", including the target, and no names; give as many columns, or leave out the target");
  size_t at = 0;
  for (const TableColumn& column : format_.columns) {
    const bool is_absent = column.role == ColumnRole::target && width_ + 1 == all;
    places_.push_back(is_absent ? nowhere : at++);
    if (column.role == ColumnRole::id) id_ = places_.back();
  }
}

void NewRows::each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) {
  const RowEncoder encoder(format_, places_);
  RowReader rows(file_, separator_, meter);
  std::vector<std::string_view> fields;
  std::vector<double> inputs;
  for (bool first = format_.has_header; rows.next(fields); first = false) {
    if (first) continue;
    line_ = rows.line();
    if (fields.size() != width_)
      fail(Exit::data, where(), " has ", fields.size(), " columns and the first line has ", width_,
           "; give every line the same number of columns");
    inputs.clear();
    encoder.encode(
        fields, /*prepares=*/false,
        [&](size_t c) { return str(where(), ": ", column_name(format_.columns[c], places_[c])); },
        inputs);
    f({.inputs = inputs,
       .targets = {},
       .label = id_ == nowhere ? std::string_view() : fields[id_]});
  }
}

}  // namespace

std::unique_ptr<ExampleSource> open_tables(const std::vector<std::string>& files,
                                           const TableOptions& options, const ExampleSource* like) {
  const auto* table = dynamic_cast<const TableSource*>(like);
  if (like != nullptr && table == nullptr)
    fail(Exit::data, files[0],
         " is CSV and the training examples are not; give both in the same format");
  return std::make_unique<TableSource>(files, options, table);
}

std::unique_ptr<ExampleSource> open_new_rows(const std::string& file, const TableFormat& format) {
  return std::make_unique<NewRows>(file, format);
}

}  // namespace lathe
