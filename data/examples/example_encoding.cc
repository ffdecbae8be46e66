#include "data/examples/example_encoding.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/io/text.h"
#include "data/examples/arrays.h"

namespace lathe {
namespace {

// The manifest's name for the interpolation with which image files are resized. No other
// interpolation exists yet.
constexpr const char* resampling = "bilinear";
// The largest number of elements of an example. With this limit, sums and byte counts fit in int64.
constexpr int64_t most_elements = int64_t{1} << 40;

constexpr const char* role_names[]{"input", "target", "id", "dropped"};

Json normalization_json(const Normalization& n) { return {{"mean", n.mean}, {"scale", n.scale}}; }

/// Reads `n` means and `n` scales. All must be finite, and scales must be above 0.
Normalization read_normalization(const Json& json, const char* key, int64_t n,
                                 const std::string& where, Exit code) {
  const auto both = json_get<Json>(json, key, where, code);
  Normalization r{json_get<std::vector<double>>(both, "mean", where, code),
                  json_get<std::vector<double>>(both, "scale", where, code)};
  if (std::ssize(r.mean) != n || std::ssize(r.scale) != n)
    fail(code, where, ": \"", key, "\" must have ", n, " means and as many scales");
  for (const double x : r.mean) {
    if (!std::isfinite(x)) fail(code, where, ": a mean of \"", key, "\" is not finite");
  }
  for (const double x : r.scale) {
    if (!std::isfinite(x) || x <= 0) fail(code, where, ": a scale of \"", key, "\" is not above 0");
  }
  return r;
}

Json table_json(const TableFormat& table) {
  Json columns = Json::array();
  for (const TableColumn& c : table.columns) {
    Json column{{"name", c.name}, {"role", role_names[static_cast<int>(c.role)]}};
    if (c.is_text) column["values"] = c.values;
    if (c.fill) column["fill"] = *c.fill;
    columns.push_back(std::move(column));
  }
  return {{"separator", std::string(1, table.separator)},
          {"header", table.has_header},
          {"missing", table.missing},
          {"columns", std::move(columns)}};
}

TableColumn read_column(const Json& json, const std::string& where, Exit code) {
  TableColumn column{.name = json_get<std::string>(json, "name", where, code)};
  const auto role = json_get<std::string>(json, "role", where, code);
  const auto* found = std::find(std::begin(role_names), std::end(role_names), role);
  if (found == std::end(role_names))
    fail(code, where, ": a column's \"role\" must be input, target, id or dropped");
  column.role = static_cast<ColumnRole>(found - std::begin(role_names));

  if (json.contains("fill")) {
    column.fill = json_get<double>(json, "fill", where, code);
    if (!std::isfinite(*column.fill)) fail(code, where, ": a column's \"fill\" is not finite");
  }

  column.is_text = json.contains("values");
  if (!column.is_text) return column;
  column.values = json_get<std::vector<std::string>>(json, "values", where, code);
  if (column.values.empty() || std::ssize(column.values) > max_column_values ||
      std::set(column.values.begin(), column.values.end()).size() != column.values.size())
    fail(code, where, ": a column must have 1 to ", max_column_values, " different \"values\"");
  return column;
}

TableFormat read_table(const Json& json, const std::string& where, Exit code) {
  const auto separator = json_get<std::string>(json, "separator", where, code);
  TableFormat table{.has_header = json_get<bool>(json, "header", where, code),
                    .missing = json_get<std::string>(json, "missing", where, code)};
  if (separator.size() != 1) fail(code, where, ": \"separator\" must be one byte");
  table.separator = separator[0];

  const std::string& missing = table.missing;
  if (missing != "error" && missing != "drop" && missing != "mean" && missing != "median")
    fail(code, where, ": \"missing\" must be error, drop, mean or median");

  const auto columns = json_get<Json>(json, "columns", where, code);
  if (!columns.is_array()) fail(code, where, ": \"columns\" must be a list");
  for (const Json& column : columns) table.columns.push_back(read_column(column, where, code));
  return table;
}

}  // namespace

int64_t TableFormat::width() const {
  int64_t all = 0;
  for (const TableColumn& column : columns) all += column.width();
  return all;
}

std::string table_text(const TableFormat& table) {
  constexpr size_t most_shown = 20;
  std::string text;
  for (size_t c = 0; c < std::min(table.columns.size(), most_shown); ++c) {
    const TableColumn& column = table.columns[c];
    text += str("  column ", c + 1, column.name.empty() ? "" : " " + printable_line(column.name),
                "  ", role_names[static_cast<int>(column.role)]);
    if (column.is_text) text += str(", ", column.values.size(), " categories");
    if (column.fill) text += str(", empty cells become ", *column.fill);
    text += "\n";
  }
  if (table.columns.size() > most_shown)
    text += str("  and ", table.columns.size() - most_shown, " more columns\n");
  return text;
}

void add_encoding(Json& json, const ExampleEncoding& e) {
  json["sizes"] = e.input_sizes;
  json["outputs"] = e.outputs;
  json["inputs"] = normalization_json(e.inputs);
  if (!e.targets.mean.empty()) json["targets"] = normalization_json(e.targets);
  if (!e.labels.empty()) json["labels"] = e.labels;
  if (e.channels_last) json["layout"] = "hwc";
  if (e.table) json["table"] = table_json(*e.table);
  if (e.image_files) json["images"] = resampling;
}

ExampleEncoding read_encoding(const Json& json, bool classes, const std::string& where, Exit code) {
  ExampleEncoding e;
  const auto sizes = json_get<Json>(json, "sizes", where, code);
  if (!sizes.is_array() || sizes.empty())
    fail(code, where, ": \"sizes\" must be a list of whole numbers above 0");

  // Compare each size with the limit divided by the product of the previous sizes, so that the
  // product of all sizes can't overflow.
  int64_t numel = 1;
  for (const auto& size : sizes) {
    const Json named{{"sizes", size}};
    e.input_sizes.push_back(json_integer(named, "sizes", 1, most_elements / numel, where, code));
    numel *= e.input_sizes.back();
  }

  e.outputs = json_integer(json, "outputs", 1, classes ? max_classes : most_elements, where, code);
  if (json.contains("labels"))
    e.labels = json_get<std::vector<std::string>>(json, "labels", where, code);
  // Labels are optional, but if one class has a label, each class must have one.
  if (!e.labels.empty() && (!classes || std::ssize(e.labels) != e.outputs))
    fail(code, where, ": there are ", e.labels.size(), " labels for ", classes ? e.outputs : 0,
         " classes");

  e.inputs = read_normalization(json, "inputs", groups_of(e.input_sizes).count, where, code);
  if (!classes) e.targets = read_normalization(json, "targets", e.outputs, where, code);

  if (json.contains("layout")) {
    e.channels_last = json_get<std::string>(json, "layout", where, code) == "hwc";
    if (!e.channels_last || e.input_sizes.size() != 3)
      fail(code, where, ": \"layout\" must be hwc, and the inputs must have three sizes");
  }
  if (json.contains("table")) {
    e.table = read_table(json_get<Json>(json, "table", where, code), where, code);
    if (e.table->width() != numel)
      fail(code, where, ": the columns of \"table\" give ", e.table->width(), " inputs, but ",
           "\"sizes\" is ", sizes_text(e.input_sizes));
  }
  if (json.contains("images")) {
    const bool has_channels =
        e.input_sizes.size() == 3 && (e.input_sizes[0] == 1 || e.input_sizes[0] == 3);
    e.image_files = json_get<std::string>(json, "images", where, code) == resampling;
    if (!e.image_files || !has_channels || e.table || e.channels_last)
      fail(code, where, ": \"images\" must be ", resampling,
           ", and the inputs must have 1 or 3 channels");
  }
  return e;
}

std::vector<int64_t> channels_first(const std::vector<int64_t>& sizes) {
  return {sizes.at(2), sizes.at(0), sizes.at(1)};
}

void put_channels_first(std::span<const double> image, const std::vector<int64_t>& sizes,
                        std::vector<double>& out) {
  const auto channels = static_cast<size_t>(sizes.at(0));
  const size_t pixels = image.size() / channels;
  out.resize(image.size());
  for (size_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < channels; ++c) out[c * pixels + i] = image[i * channels + c];
  }
}

}  // namespace lathe
