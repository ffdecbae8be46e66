// Text to token shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files, or folders whose text files are taken in name order
  fs::path out;
  std::string tokenizer = "byte";
  double val_share = 0.1;                       ///< taken from the tail
  int64_t shard_tokens = int64_t{100'000'000};  ///< a split longer than this becomes several files
};

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json. Exit::data for input that can't be
/// used, Exit::usage where `out` already holds data.
void prepare(const PrepareOptions& options);

}  // namespace lathe
