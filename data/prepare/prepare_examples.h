// Tables and arrays to example sets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

struct ExampleOptions {
  std::vector<std::string> inputs{};  ///< as open_source takes them (data/prepare/example_source.h)
  fs::path out{};
  std::string target = "last";  ///< of CSV: "last", "first", a column's name, or its number from 1
  std::string task{};           ///< "classification", "regression"; empty: as the targets look
  double val_share = 0.1;       ///< for validation, a keyed random choice, of each class alike
  std::vector<std::string> val_inputs{};  ///< the validation examples, in place of a share
  std::vector<int64_t> shape{};  ///< sizes of one input, as {1, 8, 8}; empty: as the files have it
  std::function<bool()> stop =
      nullptr;  ///< asked every 4 MiB of input; true ends it with Exit::stopped
};

/// Writes train_inputs.npy, train_targets.npy, the same of val, and, last, manifest.json. Input is
/// read twice, a piece at a time, so memory does not grow with it. Inputs keep their type (of text:
/// uint8 where all are whole numbers up to 255, else float64; float16 and bfloat16 become float32,
/// bool uint8) and order; text labels, and whole numbers that are classes, are counted from 0 in
/// sorted order and keep their names. A target is taken for a class where it is text, or a whole
/// number of which there are at most 20 different ones, or at most 1000 with 50 examples for each.
///
/// Whenever it is cut short, the same call can be made again: what an ended process left is removed
/// first, and nothing else is. Exit::data for input that can't be used, with its file, line and
/// column; Exit::usage where `out` already holds data or an option does not fit; Exit::busy where
/// another process prepares data there; on an error nothing is left in `out`.
void prepare_examples(const ExampleOptions& options);

}  // namespace lathe
