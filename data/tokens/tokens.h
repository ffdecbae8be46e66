// Reads memory-mapped token shards. The shards of a split form one long sequence.
//
// A run identifies its data by a fingerprint (TokenFile::fingerprint), which is computed from the
// shards' checksums in the manifest and from samples of the shards' bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "data/tokens/manifest.h"

namespace lathe {

/// The tokens of one split. Its shards are raw tokens (nanoGPT's layout) or have llm.c's header.
/// Raw tokens have the manifest's dtype; if there is no manifest, they are uint16. The header of
/// llm.c is 256 int32: magic 20240520 and version 1 for uint16 tokens, or magic 20240801 and
/// version 7 for uint32 tokens; then the number of tokens.
class TokenFile {
 public:
  /// Maps `split` ("train", "val") of a data folder. Uses the shards that the manifest lists. If
  /// there is no manifest, uses SPLIT.bin, or otherwise SPLIT_*.bin or the shards of a named set
  /// (fineweb_SPLIT_*.bin, tiny_SPLIT.bin) in the order of their names. Throws Exit::data if a size
  /// or a header is wrong, or if the split is empty.
  TokenFile(const fs::path& folder, const std::string& split,
            const std::optional<DataManifest>& manifest);

  int64_t size() const { return total_; }
  /// Copies tokens [begin, begin + n) to out. Throws Exit::data with the shard and the position for
  /// an id that is not below `vocab`.
  void read(int64_t begin, int64_t n, int64_t vocab, int64_t* out) const;
  /// Returns whether some tokens may be marked as not counting toward the loss
  /// (DataManifest::marked).
  bool marked() const { return marked_; }
  /// Copies tokens [begin, begin + n) to out as targets, with -100 for marked tokens. Does not
  /// check the ids.
  void read_targets(int64_t begin, int64_t n, int64_t* out) const;
  /// Returns how many of the tokens [begin, begin + n) are not marked, and so count toward the
  /// loss.
  int64_t count_unmarked(int64_t begin, int64_t n) const;
  /// Returns the positions where the rows of preference data begin (DataManifest::pairs); each row
  /// is a prompt with one answer. Returns an empty vector for other data. Reads all tokens.
  std::vector<int64_t> begins() const;
  /// Returns the positions of all tokens with this id. Reads all tokens.
  std::vector<int64_t> positions_of(int64_t id) const;
  /// Checks, as read() does, that every id of the first shards is below `vocab`. Stops before the
  /// shard with which the checked shards would exceed `limit` bytes in total; the remaining shards
  /// are checked only when they are read.
  void check_ids(int64_t vocab, int64_t limit = 128 << 20) const;
  /// Returns a short checksum of the contents. The checksum covers each shard's number of tokens,
  /// its checksum in the manifest, and evenly spaced blocks of 1 MiB. If there is a manifest, this
  /// call reads about 128 blocks of the split, at least 2 of each shard. Otherwise, this call reads
  /// 128 blocks of each shard. Smaller files are read completely. The fingerprint detects most
  /// changes of a file in a fraction of a second.
  std::string fingerprint() const;
  /// Returns whether `saved` is this data's fingerprint, in the current form or in the form of
  /// earlier builds, which relied on the manifest's checksums.
  bool matches(const std::string& saved) const;
  /// Reads all shards and compares their checksums with the checksums in the manifest. Throws
  /// Exit::data if there is no manifest, or if a shard differs; the message names the shard. Throws
  /// Exit::stopped once `stop`, which is called every 16 MiB, returns true.
  void verify(const std::function<bool()>& stop = nullptr) const;
  /// Returns a line for each shard: its name, number of tokens and type, and whether it has llm.c's
  /// header.
  std::string table() const;
  /// Returns the largest id; reads all tokens.
  uint32_t largest_id() const;

 private:
  struct Shard {
    MappedFile file;
    const std::byte* data;
    int64_t begin, tokens;
    int width;  // number of bytes of a token
    std::string xxh3;
  };
  /// Returns the fingerprint. If `trust_manifest` is true, does not read the bytes of shards that
  /// have a checksum in the manifest.
  std::string identity(bool trust_manifest) const;
  /// Calls f(shard, position in the shard, id with the flag bits of mark.h) for tokens [begin,
  /// begin + n).
  template <class F>
  void each(int64_t begin, int64_t n, F&& f) const;
  void add(const fs::path& path, int raw_width, const ShardInfo* expected);
  [[noreturn]] static void refuse(const Shard& shard, int64_t at, uint32_t id, int64_t vocab);

  std::vector<Shard> shards_;
  int64_t total_ = 0;
  bool marked_ = false;
};

/// Returns whether the folder has the split `split` ("train", "val").
bool has_split(const fs::path& folder, const std::string& split,
               const std::optional<DataManifest>& manifest);

}  // namespace lathe
