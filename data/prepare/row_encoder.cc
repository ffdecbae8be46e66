#include "data/prepare/row_encoder.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "data/prepare/csv.h"

namespace lathe {

std::string quoted(std::string_view text) { return "\"" + std::string(text.substr(0, 100)) + "\""; }

void refuse_number(std::string_view cell, const std::string& where, bool prepares) {
  if (!csv_number(cell)) {
    const bool comma = cell.find(',') != std::string_view::npos &&
                       cell.find_first_not_of("+-0123456789.,") == std::string_view::npos;
    std::string remedy = "repair it, or leave the line out";
    if (prepares)
      remedy =
          "repair it (an empty cell is a missing number, which --missing handles), leave the "
          "column out with --drop, or make categories of the column with --category";
    if (comma) remedy = "write it with a decimal point and no other separator";
    fail(Exit::data, where, " is ", quoted(cell), ", which is not a number; ", remedy);
  }
  fail(Exit::data, where, " is ", quoted(cell),
       ", which is not finite, or too large or too small for float64; repair it, or leave the line "
       "out");
}

RowEncoder::RowEncoder(const TableFormat& format, std::vector<size_t> places)
    : format_(format), places_(std::move(places)), values_(format.columns.size()) {
  for (size_t c = 0; c < values_.size(); ++c) {
    for (const std::string& value : format.columns[c].values)
      values_[c].emplace(value, values_[c].size());
  }
}

void RowEncoder::encode(const std::vector<std::string_view>& fields, bool prepares,
                        const std::function<std::string(size_t column)>& where,
                        std::vector<double>& inputs) const {
  const std::string& missing = format_.missing;
  const bool fills = missing == "mean" || missing == "median";
  for (size_t c = 0; c < places_.size(); ++c) {
    const TableColumn& column = format_.columns[c];
    if (column.role != ColumnRole::input) continue;
    const std::string_view cell = fields[places_[c]];
    if (cell.empty() && !fills) {
      fail(Exit::data, where(c), " is empty; fill it in, ",
           prepares ? "leave the line out, or give --missing mean, median or drop"
                    : "or leave the line out");
    }

    if (!column.is_text) {
      const auto number = csv_number(cell);
      if (!cell.empty() && (!number || !std::isfinite(*number)))
        refuse_number(cell, where(c), prepares);
      inputs.push_back(number ? *number : column.fill.value_or(std::nan("")));
      continue;
    }

    const auto found = values_[c].find(cell);
    if (found == values_[c].end())
      fail(Exit::data, where(c), " is ", cell.empty() ? "empty" : quoted(cell),
           ", which no training example has there; repair it, or leave the line out");
    inputs.resize(inputs.size() + values_[c].size());
    (inputs.end() - std::ssize(values_[c]))[static_cast<int64_t>(found->second)] = 1;
  }
}

}  // namespace lathe
