// Describes how examples become inputs of a model and how the model's outputs become predictions.
// The encoding is stored in a data folder's manifest and, for `lathe predict`, in a checkpoint.
// This file includes no LibTorch header.
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
  std::string name;  ///< the column's name; empty in a table without a header line
  ColumnRole role = ColumnRole::input;
  /// Whether the column holds categories. They are one-hot encoded, with one input for each of
  /// `values`.
  bool is_text = false;
  std::vector<std::string> values{};  ///< text column: the categories in sorted order
  std::optional<double> fill{};       ///< numeric column: the number that replaces empty cells
  /// Returns how many of the model's inputs come from the column.
  int64_t width() const {
    if (role != ColumnRole::input) return 0;
    return is_text ? std::ssize(values) : 1;
  }
};

/// The columns of a table, in the order of the table's file.
struct TableFormat {
  char separator = ',';
  bool has_header = false;
  std::string missing = "error";  ///< how empty cells are treated: "error", "drop", "mean" or
                                  ///< "median"
  std::vector<TableColumn> columns{};
  /// Returns how many of the model's inputs come from all columns together.
  int64_t width() const;
};

/// Describes how examples become the inputs of a model, so that new examples can be encoded in the
/// same way as the training data.
struct ExampleEncoding {
  std::vector<int64_t> input_sizes{};  ///< shape of one input, such as {64} or {1, 8, 8}
  int64_t outputs = 0;                 ///< number of classes, or number of target values
  std::vector<std::string> labels{};   ///< classification: the names of the classes; empty if they
                                       ///< have no names
  Normalization inputs{};      ///< statistics of the training split, one mean and scale for each
                               ///< group (see groups_of())
  Normalization targets{};     ///< regression: statistics of each output; otherwise empty
  bool channels_last = false;  ///< whether the files have images as [H, W, C]
  std::optional<TableFormat> table{};  ///< the columns, if the examples came from a table
  /// Whether the examples were PNG and JPEG files, which data/prepare/resize.h resized.
  bool image_files = false;
};

/// Returns the lines that `lathe inspect` shows for a table: a line for each of the first 20
/// columns, and the number of the remaining columns.
std::string table_text(const TableFormat& table);
/// Adds the keys of an encoding to a JSON object.
void add_encoding(Json& json, const ExampleEncoding& encoding);
/// Reads the keys that add_encoding() wrote. `classifies` is true if the targets are classes. If a
/// key is missing or its value is invalid, throws an error with exit code `code` and a message that
/// begins with `where`.
ExampleEncoding read_encoding(const Json& json, bool classifies, const std::string& where,
                              Exit code);

/// Returns the sizes [C, H, W] for an image whose `sizes` are [H, W, C].
std::vector<int64_t> channels_first(const std::vector<int64_t>& sizes);
/// Writes an image [H, W, C] to `out` as [C, H, W]. `sizes` are the sizes of the result.
void put_channels_first(std::span<const double> image, const std::vector<int64_t>& sizes,
                        std::vector<double>& out);

/// The largest number of classes.
inline constexpr int64_t max_classes = 65536;
/// The largest number of different values of a text column.
inline constexpr int64_t max_column_values = 1000;

}  // namespace lathe
