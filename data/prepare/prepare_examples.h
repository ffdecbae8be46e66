// Converts tables, arrays and folders of images to example sets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "data/prepare/example_source.h"
#include "data/prepare/image_source.h"

namespace lathe {

struct ExampleOptions {
  std::vector<std::string> inputs{};  ///< files for open_source (data/prepare/example_source.h); if
                                      ///< `images` is set, a folder of images by class
  fs::path out{};
  TableOptions table{};
  std::string task{};      ///< "classification", "regression"; empty: the targets decide
  double val_share = 0.1;  ///< share for validation: a keyed random choice from each class
  std::vector<std::string> val_inputs{};  ///< validation examples; empty: a share of `inputs`
  /// Dimensions of one input, such as {1, 8, 8}; empty: the dimensions in the files.
  std::vector<int64_t> shape{};
  /// If set, `inputs` is one folder of images by class, and so is `val_inputs` unless it is empty.
  std::optional<ImageOptions> images{};
  bool channels_last = false;  ///< inputs are images [H, W, C]; they are stored as [C, H, W]
  /// Called every 4 MiB of input, or after each image; true ends the preparation with
  /// Exit::stopped.
  std::function<bool()> stop = nullptr;
};

/// Writes train_inputs.npy, train_targets.npy, val_inputs.npy, val_targets.npy and, last,
/// manifest.json. Reads the input twice, or up to four times for a table with text columns or
/// filled cells. Reads piece by piece, so memory does not grow with the input. Inputs keep their
/// order and their type, except that float16 and bfloat16 become float32 and bool becomes uint8.
/// Numbers in tables become uint8 if all are integers from 0 to 255, and otherwise float64.
///
/// Classes, which are text labels or integers, are numbered from 0 in sorted order and keep their
/// names. If `task` is empty, the targets are classes if they are text, or if they are integers
/// with at most 20 different values. Integers are also classes if they have at most 1000 different
/// values and, on average, at least 50 examples for each value.
///
/// A text column of a table is one-hot encoded: it becomes an input for each value that the column
/// has in `inputs`, including rows that become validation examples. Empty cells are filled with the
/// mean or the median over the training split. To compute medians, keeps the numbers of the table
/// in memory. The manifest has the columns, their values and fills, so that `lathe predict` encodes
/// new tables in the same way.
///
/// After any interruption, the same call can be repeated. The repeated call first removes the files
/// that the interrupted call left. Throws Exit::data for input that can't be used, with the file,
/// line and column; Exit::usage if `out` already holds data or an option does not fit; Exit::busy
/// if another process prepares data there. After an error, nothing is left in `out`.
void prepare_examples(const ExampleOptions& options);

}  // namespace lathe
