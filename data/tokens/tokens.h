// Memory-mapped token shards: a split of a data folder is read as one long sequence.
//
// A run identifies its data by a fingerprint of the shards' checksums in the manifest and of
// samples of their bytes (TokenFile::fingerprint).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "data/tokens/manifest.h"

namespace lathe {

/// The tokens of one split. Its shards are raw tokens (nanoGPT's layout) of the manifest's dtype,
/// or uint16 without a manifest, or they have llm.c's header of 256 int32: magic 20240520 and
/// version 1 for uint16, magic 20240801 and version 7 for uint32; then the number of tokens.
class TokenFile {
 public:
  /// Maps `split` ("train", "val") of a data folder: the manifest's shards, else SPLIT.bin, else
  /// SPLIT_*.bin or those of a named set (fineweb_SPLIT_*.bin, tiny_SPLIT.bin). Checks sizes and
  /// headers, and that the split is not empty; throws Exit::data otherwise. Without a manifest,
  /// shards are in the order of their names.
  TokenFile(const fs::path& folder, const std::string& split,
            const std::optional<DataManifest>& manifest);

  int64_t size() const { return total_; }
  /// Copies tokens [begin, begin + n) to out. Throws Exit::data with the shard and the position for
  /// an id that is not below `vocab`.
  void read(int64_t begin, int64_t n, int64_t vocab, int64_t* out) const;
  /// Returns whether some tokens may be marked as not counting toward the loss
  /// (DataManifest::marked).
  bool marked() const { return marked_; }
  /// Copies tokens [begin, begin + n) to out as targets, with -100 for marked ones. Does not check
  /// the ids.
  void read_targets(int64_t begin, int64_t n, int64_t* out) const;
  /// Returns how many of the tokens [begin, begin + n) are not marked, and so count toward the
  /// loss.
  int64_t count_unmarked(int64_t begin, int64_t n) const;
  /// Returns the positions where the rows of preference data begin (DataManifest::pairs): each row
  /// is a prompt with one answer. Reads all tokens. Empty for other data.
  std::vector<int64_t> begins() const;
  /// Returns the positions of all tokens with this id. Reads all tokens.
  std::vector<int64_t> positions_of(int64_t id) const;
  /// Checks, as read() does, that every id of the first shards is below `vocab`. Stops at the shard
  /// that would exceed `limit` bytes in total; later shards are checked only when they are read.
  void check_ids(int64_t vocab, int64_t limit = 128 << 20) const;
  /// Returns a short checksum of the contents. It covers each shard's number of tokens, its
  /// checksum in the manifest, and evenly spaced blocks of 1 MiB, which this call reads: with a
  /// manifest, about 128 blocks of the split and at least 2 of each shard; without one, 128 blocks
  /// of each shard. Smaller files are read completely. This detects most changes of a file in a
  /// fraction of a second.
  std::string fingerprint() const;
  /// Returns whether `saved` is this data's fingerprint, in its current form or in that of earlier
  /// builds, which relied on the manifest's checksums.
  bool matches(const std::string& saved) const;
  /// Reads every byte and compares it with the manifest's checksums. Throws Exit::data with the
  /// shard that differs, or if there is no manifest; throws Exit::stopped once `stop`, which is
  /// called every 16 MiB, returns true.
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
    int width;  // bytes of a token
    std::string xxh3;
  };
  /// Returns the fingerprint. If `trust_manifest` is true, does not read the bytes of shards that
  /// have a checksum in the manifest.
  std::string identity(bool trust_manifest) const;
  /// Calls f(shard, position in the shard, id with the bits of mark.h) for tokens [begin, begin +
  /// n).
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
