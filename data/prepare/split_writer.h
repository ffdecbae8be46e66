// Writing token shards. No LibTorch header.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/file.h"
#include "data/manifest.h"
#include "data/prepare/out_folder.h"

namespace lathe {

/// Writes the shards of a split under names that nothing reads (OutFolder::unfinished), ids as
/// uint16 or, `wide`, as uint32.
class SplitWriter {
 public:
  /// `most_tokens`: how many may come, which decides whether files are numbered; nullopt where that
  /// is not known.
  SplitWriter(const fs::path& out, int64_t shard_tokens, const std::string& split,
              std::optional<int64_t> most_tokens, bool wide)
      : out_(out),
        shard_tokens_(shard_tokens),
        split_(split),
        most_tokens_(most_tokens),
        wide_(wide) {}

  /// Goes on behind the first `tokens` of what an ended process wrote under the same names; what it
  /// wrote beyond them is cut off. False, and nothing is changed, where they are not there, or,
  /// with a warning, where their checksum() is not `checksum`.
  bool resume(int64_t tokens, const std::string& checksum);
  /// Appends ids.
  void write(std::span<const int32_t> ids);
  /// Waits until the disk has what was written.
  void sync();
  /// Names of the files so far.
  std::vector<std::string> files() const;
  /// Checksum of what was written so far, from each file's own.
  std::string checksum() const;
  /// Tokens so far.
  int64_t tokens() const { return tokens_; }
  /// Closes the last file. All of them, in order.
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
  std::vector<uint16_t> narrow_;
  OutputFile file_;
  Checksum sum_;
  std::vector<ShardInfo> shards_;
};

/// Records how far a preparation is, when the disk has what both splits were given; their tokens
/// are filled in.
void record(const Journal& journal, Progress progress, SplitWriter& train, SplitWriter& val);
/// What OutFolder::clear leaves there for one that goes on: the record, and the files of these
/// splits.
std::vector<std::string> unfinished_shards(std::initializer_list<const SplitWriter*> splits);

}  // namespace lathe
