// What stands beside the shards: manifest.json of a data folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct ShardInfo {
  std::string file;  ///< name within the folder
  int64_t tokens = 0;
  std::string xxh3;  ///< of the whole file
};

/// What manifest.json says of token shards.
struct DataManifest {
  Tokenizer tokenizer;
  int64_t vocab_size = 0;
  int64_t largest_id = 0;
  std::string dtype = "uint16";
  std::vector<ShardInfo> train, val;
  Json documents{};  ///< what was counted while documents were prepared; null where they were not
  /// Instruction data: ids are uint32, and those of prompts, which are read and not learned, have
  /// the bit token_mark.
  bool marked = false;
};

/// What model.vocab_size may be at most.
inline constexpr int64_t max_vocab_size = 10'000'000;

/// Writes manifest.json durably, with a checksum of itself.
void write_manifest(const fs::path& folder, const DataManifest& manifest,
                    const std::string& name = "manifest.json");
/// Reads it; nullopt where the folder has none; Exit::data where it is malformed, a number is out
/// of its range, or it was changed since it was written.
std::optional<DataManifest> read_manifest(const fs::path& folder,
                                          const std::string& name = "manifest.json");

}  // namespace lathe
