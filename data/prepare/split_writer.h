// Writes token shards. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/file.h"
#include "data/prepare/out_folder.h"
#include "data/tokens/manifest.h"

namespace lathe {

/// Writes the shards of a split under temporary names (OutFolder::unfinished). Ids are stored as
/// uint16, or as uint32 if `wide` is true.
class SplitWriter {
 public:
  /// Creates a writer that opens no file yet. `most_tokens` is an upper bound on the number of
  /// tokens; nullopt if no bound is known. This bound decides whether the names of the files have
  /// numbers.
  SplitWriter(const fs::path& out, int64_t shard_tokens, const std::string& split,
              std::optional<int64_t> most_tokens, bool wide)
      : out_(out),
        shard_tokens_(shard_tokens),
        split_(split),
        most_tokens_(most_tokens),
        wide_(wide) {}

  /// Continues after the first `tokens` tokens that an interrupted process wrote under the same
  /// names, and truncates the files after these tokens. Returns false, and changes nothing, if the
  /// files are missing or too short, or if their checksum() is not `checksum`. If the checksums
  /// differ, also logs a warning.
  bool resume(int64_t tokens, const std::string& checksum);
  /// Appends ids.
  void write(std::span<const int32_t> ids);
  /// Waits until everything written is on disk.
  void sync();
  /// Returns the names of the files so far.
  std::vector<std::string> files() const;
  /// Returns a checksum of the tokens so far, which is made from the checksums of the files.
  std::string checksum() const;
  /// Returns the number of tokens so far.
  int64_t tokens() const { return tokens_; }
  /// Closes the last file. Returns all files in order.
  std::vector<ShardInfo> finish();

 private:
  std::string name_of(size_t shard) const;
  void open();
  void close();

  fs::path out_;
  int64_t shard_tokens_;
  std::string split_;
  std::optional<int64_t> most_tokens_;
  bool wide_;
  int64_t tokens_ = 0;
  std::vector<uint16_t> uint16_ids_;
  OutputFile file_;
  Checksum sum_;
  std::vector<ShardInfo> shards_;
};

/// Waits until all tokens of both splits are on disk, then writes `progress` to the journal, with
/// the number of tokens and the checksum of each split.
void record(const Journal& journal, Progress progress, SplitWriter& train, SplitWriter& val);
/// Returns the names of the files that OutFolder::clear must keep for a resumed preparation: the
/// journal, and the files of these splits.
std::vector<std::string> resumable_files(std::initializer_list<const SplitWriter*> splits);

}  // namespace lathe
