// Conversion of plain text to token shards of bytes or characters. prepare_documents handles a BPE
// and all other input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Returns the files that inputs stand for: a folder gives its regular files, recursively, in name
/// order.
std::vector<fs::path> expand_inputs(const std::vector<std::string>& inputs);

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files, or folders, as expand_inputs() takes them
  fs::path out;
  std::string tokenizer = "byte";               ///< byte or char
  bool binary = false;                          ///< byte: the input need not be text
  double val_share = 0.1;                       ///< share of the tokens, at the end
  int64_t shard_tokens = int64_t{100'000'000};  ///< a longer split becomes several files
  /// Seconds between records of the progress, from which the same call resumes.
  double progress_seconds = 5;
  /// Called every 4 MiB of input; true ends the preparation with Exit::stopped.
  std::function<bool()> stop = nullptr;
};

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json. Input is read
/// twice, or once if it is binary, and piece by piece, so memory does not grow with it. Input that
/// is not text (data/prepare/file_type.h) is refused unless it is binary. After any interruption
/// the same call can be repeated: it resumes from the last record (Exit::data where that input has
/// changed), and removes all other files that an interrupted call left. Throws Exit::data for input
/// that can't be used, Exit::usage where `out` already holds data, and Exit::busy where another
/// process prepares data there. After an error before the first record nothing is left in `out`.
void prepare(const PrepareOptions& options);

}  // namespace lathe
