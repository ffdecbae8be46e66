// Plain text to token shards of bytes or characters. A BPE, and all that is not plain text, goes by
// prepare_documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// The files behind inputs; a folder gives its regular files, however deep, in name order.
std::vector<fs::path> expand_inputs(const std::vector<std::string>& inputs);

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files, or folders whose text files are taken in name order
  fs::path out;
  std::string tokenizer = "byte";               ///< byte or char
  double val_share = 0.1;                       ///< taken from the tail
  int64_t shard_tokens = int64_t{100'000'000};  ///< a split longer than this becomes several files
  double progress_seconds =
      5;  ///< between records of how far it is, from which the same call goes on
  std::function<bool()> stop =
      nullptr;  ///< asked every 4 MiB of input; true ends it with Exit::stopped
};

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json. Input is read a
/// piece at a time, by "char" twice, so memory does not grow with it. Whenever it is cut short, the
/// same call can be made again: it goes on behind what was recorded as done (Exit::data where that
/// input has changed), and removes what else an ended process left. Exit::data for input that can't
/// be used, Exit::usage where `out` already holds data, Exit::busy where another process prepares
/// data there; on an error before the first record nothing is left in `out`.
void prepare(const PrepareOptions& options);

}  // namespace lathe
