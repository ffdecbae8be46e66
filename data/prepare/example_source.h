// Files that example sets are made from: CSV, IDX, and pairs of .npy or .safetensors. No LibTorch
// header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/arrays.h"
#include "data/prepare/out_folder.h"

namespace lathe {

/// One example; valid until the next one is read.
struct RawExample {
  std::span<const double> inputs;
  std::span<const double> targets;  ///< empty where the target is text
  std::string_view label;           ///< a target that is text
};

/// Examples in order, which can be read repeatedly. Every number is finite.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;
  /// Returns the dimensions of one input.
  virtual std::vector<int64_t> sizes() const = 0;
  /// Returns how many numbers a target has.
  virtual int64_t target_numel() const { return 1; }
  /// Returns the type of the numbers in the files; nullopt for text.
  virtual std::optional<ArrayType> input_type() const { return std::nullopt; }
  virtual std::optional<ArrayType> target_type() const { return std::nullopt; }
  /// Returns what a user may want to check, such as "header line a, b, label; target column 3
  /// (label)"; or an empty string.
  virtual std::string layout() const { return ""; }
  /// Returns the bytes to read.
  virtual uint64_t bytes() const = 0;
  /// Calls f with each example and reports all bytes to the meter. Throws Exit::data with the
  /// position of what can't be read.
  virtual void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) = 0;
  /// Returns the position of the target that f was last called with.
  virtual std::string where() const = 0;
};

/// Opens files of a format that their contents determine: CSV files with the same columns
/// (`target`: "last", "first", a column's name or its number from 1); inputs and targets in two
/// IDX, .npy or .safetensors files; or one .safetensors file with the tensors "inputs" and
/// "targets". With `like`, CSV files must have its columns and have its target. Throws Exit::data
/// for what can't be read, and Exit::usage for a missing target.
std::unique_ptr<ExampleSource> open_source(const std::vector<std::string>& files,
                                           const std::string& target, const ExampleSource* like);

/// Returns whether open_source reads a file, judging by its first bytes or by the extension .csv or
/// .safetensors.
bool is_example_file(const fs::path& file);

}  // namespace lathe
