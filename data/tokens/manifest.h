// manifest.json of a folder with token shards.
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
  int64_t vocab_size = 0;
  int64_t largest_id = 0;
  std::string dtype = "uint16";
  std::vector<ShardInfo> train, val;
  Json documents{};  ///< statistics of the preparation of documents; null for plain text
  /// Instruction data: ids are uint32. Those of prompts, which the model reads but does not learn,
  /// have the bit token_mark.
  bool marked = false;
  /// Preference data: rows of pairs, a chosen one and then the rejected one with the same prompt.
  /// The first id of each row has the bit token_begin.
  bool pairs = false;
};

/// The largest model.vocab_size.
inline constexpr int64_t max_vocab_size = 10'000'000;

/// Writes manifest.json durably, with a checksum of its contents.
void write_manifest(const fs::path& folder, const DataManifest& manifest,
                    const std::string& name = "manifest.json");
/// Reads it; returns nullopt where the folder has none. Throws Exit::data where it is malformed, a
/// number is out of its range, or it was changed after it was written.
std::optional<DataManifest> read_manifest(const fs::path& folder,
                                          const std::string& name = "manifest.json");

}  // namespace lathe
