// How examples become inputs of a model, and how its outputs become predictions. The encoding is in
// a data folder's manifest and, for `lathe predict`, in a checkpoint. No LibTorch header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "data/examples/normalize.h"

namespace lathe {

/// The use of a table's column.
enum class ColumnRole { input, target, id, dropped };

struct TableColumn {
  std::string name;  ///< empty in a table without a header line
  ColumnRole role = ColumnRole::input;
  /// A text column has an input for each value, of which one is 1 and the others are 0.
  bool is_text = false;
  std::vector<std::string> values{};  ///< of a text column, sorted
  std::optional<double> fill{};       ///< of a column of numbers: replaces an empty cell
  /// Returns how many inputs the column gives.
  int64_t width() const {
    if (role != ColumnRole::input) return 0;
    return is_text ? std::ssize(values) : 1;
  }
};

/// The columns of a table, in the order of its file.
struct TableFormat {
  char separator = ',';
  bool has_header = false;
  std::string missing = "error";  ///< empty cells: "error", "drop", "mean" or "median"
  std::vector<TableColumn> columns{};
  /// Returns how many inputs all columns give.
  int64_t width() const;
};

/// How examples become the inputs of a model, so that new ones can be encoded as the training data
/// was.
struct ExampleEncoding {
  std::vector<int64_t> input_sizes{};  ///< of one input, as {64} or {1, 8, 8}
  int64_t outputs = 0;                 ///< classes, or numbers of one target
  std::vector<std::string> labels{};   ///< classification: a name for each class, or none at all
  Normalization inputs{};      ///< statistics of the training split, one for each group (groups_of)
  Normalization targets{};     ///< regression: of each output; else empty
  bool channels_last = false;  ///< the files have images as [H, W, C]
  std::optional<TableFormat> table{};  ///< of examples that were a table
  /// The examples were PNG and JPEG files, which were resized as data/prepare/resize.h does.
  bool image_files = false;
};

/// Returns a line for each of the first 20 columns, for `lathe inspect`.
std::string table_text(const TableFormat& table);
/// Adds the keys of an encoding to a JSON object.
void add_encoding(Json& json, const ExampleEncoding& encoding);
/// Reads what add_encoding wrote; `classifies` is whether the targets are classes. Throws an error
/// with that code where a key is missing or out of its range.
ExampleEncoding read_encoding(const Json& json, bool classifies, const std::string& where,
                              Exit code);

/// Returns the sizes [C, H, W] of an image [H, W, C].
std::vector<int64_t> channels_first(const std::vector<int64_t>& sizes);
/// Rearranges an image [H, W, C] to [C, H, W] in `out`. `sizes` are those of the result.
void put_channels_first(std::span<const double> image, const std::vector<int64_t>& sizes,
                        std::vector<double>& out);

/// The largest number of classes.
inline constexpr int64_t max_classes = 65536;
/// The largest number of different values of a text column.
inline constexpr int64_t max_column_values = 1000;

}  // namespace lathe
