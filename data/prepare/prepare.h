// Converts plain text to token shards of bytes or characters. prepare_documents() handles BPE
// tokenizers and all other input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Replaces each folder in `inputs` by its regular files, recursively, in the order of their paths;
/// returns all files. Leaves out `out`, the folder to which the data is written, if
/// an input contains it.
std::vector<fs::path> expand_inputs(const std::vector<std::string>& inputs,
                                    const fs::path& out = {});

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files and folders; expand_inputs() lists their files
  fs::path out;
  std::string tokenizer = "byte";  ///< byte or char
  bool binary = false;             ///< tokenizer byte: whether the input need not be text
  double val_share = 0.1;          ///< share of the tokens, from the end, for validation
  int64_t shard_tokens = int64_t{100'000'000};  ///< largest number of tokens in one file
  /// Seconds between records of the progress. A repeated call resumes from the last record.
  double progress_seconds = 5;
  /// Called every 4 MiB of input; true ends the preparation with Exit::stopped.
  std::function<bool()> stop = nullptr;
};

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json. Reads the input
/// twice, or once if options.binary is true. Reads piece by piece, so memory does not grow with the
/// input. Refuses input that is not text (data/prepare/file_type.h) unless options.binary is true.
///
/// After any interruption, the same call can be repeated. The repeated call resumes from the last
/// record of the progress, and removes all other files that the interrupted call left. If the input
/// that this record covers has changed, the repeated call throws Exit::data.
///
/// Throws Exit::data for input that can't be used, Exit::usage if `out` already holds data, and
/// Exit::busy if another process prepares data there. After an error before the first record,
/// nothing is left in `out`.
void prepare(const PrepareOptions& options);

}  // namespace lathe
