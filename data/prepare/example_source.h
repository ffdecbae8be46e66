// Reads the files that example sets are made from: tables, IDX, .npy and .safetensors. Includes no
// LibTorch header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/examples/arrays.h"
#include "data/examples/example_encoding.h"
#include "data/prepare/out_folder.h"

namespace lathe {

/// Defines how the columns of a table are used. A column is given by its name or by its number,
/// counted from 1.
struct TableOptions {
  std::string target = "last";            ///< "last", "first", or a column
  char separator = 0;                     ///< between columns; 0: find_separator() chooses
  std::string missing = "error";          ///< empty cells: "error", "drop", "mean" or "median"
  std::vector<std::string> drop{};        ///< columns that are left out
  std::vector<std::string> categories{};  ///< columns whose numbers are categories
  std::string id{};                       ///< column that names the rows; it is not an input
};

/// One example, which is valid until the next example is read.
struct RawExample {
  std::span<const double> inputs;
  std::span<const double> targets;  ///< empty if the target is text
  std::string_view label;           ///< a target that is text
};

/// A sequence of examples that can be read repeatedly. Every number is finite, except for the
/// inputs of empty cells, which are NaN until set_fills() is called.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;
  /// Reads the input once to find what sizes() needs, such as the categories of a table. Call
  /// scan() before all other functions.
  virtual void scan(ProgressReporter& /*meter*/) {}
  /// Returns the columns; null if the files are not tables.
  virtual const TableFormat* table() const { return nullptr; }
  /// Sets the numbers that replace empty cells, one for each input. Ignores the numbers for text
  /// columns.
  virtual void set_fills(const std::vector<double>& /*by_input*/) {}
  /// Returns the dimensions of one input.
  virtual std::vector<int64_t> sizes() const = 0;
  /// Returns how many numbers a target has.
  virtual int64_t target_numel() const { return 1; }
  /// Returns the element type of the inputs and of the targets; nullopt if the files do not
  /// determine the type. Tables, for example, do not, since their cells are text.
  virtual std::optional<ArrayType> input_type() const { return std::nullopt; }
  virtual std::optional<ArrayType> target_type() const { return std::nullopt; }
  /// Returns the detected layout for the user to check, such as "header line a, b, label; the
  /// target is column 3 (label)". Returns an empty string if there is nothing to check.
  virtual std::string layout() const { return ""; }
  /// Returns how many bytes each() reports to the meter.
  virtual uint64_t bytes() const = 0;
  /// Calls f with each example and reports all bytes to the meter. Throws Exit::data with the
  /// position of an example that can't be read.
  virtual void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) = 0;
  /// Returns the position in the files of the example that was last passed to f, for messages. If
  /// the example has a target, this is the position of the target.
  virtual std::string where() const = 0;
};

/// Opens files of examples. The first bytes of a file, or the extension .safetensors, determine its
/// format. The files are tables with the same columns; two IDX, .npy or .safetensors files with the
/// inputs and the targets; or one .safetensors file with the tensors "inputs" and "targets". If
/// `like` is not null, it must be a scanned source. Tables must then have the columns of `like`,
/// and are read in the same way as `like`. Throws Exit::data for files that can't be read, and
/// Exit::usage for options that do not fit.
std::unique_ptr<ExampleSource> open_source(const std::vector<std::string>& files,
                                           const TableOptions& options, const ExampleSource* like);

/// Opens new inputs for a model. `files` is one array of inputs that have the model's sizes, or one
/// table if the model was trained on tables. If the model was trained on image files, `files` can
/// also be any number of image files and folders of images. RawExample::label is the id of a
/// table's row, or the path of an image; otherwise it is empty. The encoding must outlive the
/// source. Throws Exit::data for files that do not fit the model, and Exit::usage for several files
/// that are not images.
std::unique_ptr<ExampleSource> open_new_examples(const std::vector<std::string>& files,
                                                 const ExampleEncoding& encoding);

/// Returns whether open_source reads a file, judging by its first bytes or by the extension .csv,
/// .tsv, .tab or .safetensors.
bool is_example_file(const fs::path& file);

}  // namespace lathe
