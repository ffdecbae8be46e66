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

/// Good until the next one.
struct RawExample {
  std::span<const double> inputs;
  std::span<const double> targets;  ///< empty where the target is no number
  std::string_view label;           ///< that target
};

/// Examples, in order, as often as they are wanted. Every number is finite.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;
  /// Sizes of one input, and how many numbers a target has.
  virtual std::vector<int64_t> sizes() const = 0;
  virtual int64_t target_numel() const { return 1; }
  /// What the numbers are in the files; nullopt for text.
  virtual std::optional<ArrayType> input_type() const { return std::nullopt; }
  virtual std::optional<ArrayType> target_type() const { return std::nullopt; }
  /// What a person may want to check, as "header line a, b, label; target column 3 (label)"; or
  /// empty.
  virtual std::string layout() const { return ""; }
  /// All that is to be read.
  virtual uint64_t bytes() const = 0;
  /// Calls f with each. Exit::data with the place of what can't be read; tells the meter all its
  /// bytes.
  virtual void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) = 0;
  /// The place of the target that f was called with last.
  virtual std::string where() const = 0;
};

/// What the content of `files` says that they are: CSV files with the same columns (`target`:
/// "last", "first", a column's name or its number from 1), or inputs and targets as two IDX, .npy
/// or .safetensors files, or as the tensors "inputs" and "targets" of one .safetensors file. Where
/// `like` is given, CSV files must have its columns, and its target is theirs. Exit::data for what
/// can't be read, Exit::usage for a target that is not there.
std::unique_ptr<ExampleSource> open_source(const std::vector<std::string>& files,
                                           const std::string& target, const ExampleSource* like);

/// Whether a file is one that open_source reads: by its first bytes, or ends in .csv or
/// .safetensors.
bool is_example_file(const fs::path& file);

}  // namespace lathe
