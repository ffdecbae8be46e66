// Reads and writes manifest.json of a folder with token shards.
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
  std::string xxh3;  ///< checksum of the complete file
};

/// The contents of the manifest.json of token shards.
struct DataManifest {
  Tokenizer tokenizer;
  int64_t vocab_size = 0;        ///< every id is below this number
  int64_t largest_id = 0;        ///< largest id in both splits
  std::string dtype = "uint16";  ///< type of the ids in the shards, "uint16" or "uint32"
  std::vector<ShardInfo> train, val;
  Json documents{};  ///< statistics of the preparation of documents; null for plain text
  /// Instruction and preference data: ids are uint32, and ids that do not count toward the loss,
  /// such as token ids of prompts, have the bit token_mark.
  bool marked = false;
  /// Preference data: each pair is two rows, first the prompt with the chosen answer, then the
  /// prompt with the rejected answer. The first id of each row has the bit token_begin.
  bool pairs = false;
};

/// The largest allowed value of model.vocab_size.
inline constexpr int64_t max_vocab_size = 10'000'000;

/// Writes manifest.json durably, with a checksum of its contents.
void write_manifest(const fs::path& folder, const DataManifest& manifest,
                    const std::string& name = "manifest.json");
/// Reads manifest.json; returns nullopt if the folder has none. Throws Exit::data if the manifest
/// is malformed, has a number that is out of range, or does not match its checksum.
std::optional<DataManifest> read_manifest(const fs::path& folder,
                                          const std::string& name = "manifest.json");

}  // namespace lathe
