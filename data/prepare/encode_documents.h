// Parts of a corpus as ids, with what became of each document. No LibTorch header.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/io/checksum.h"
#include "data/prepare/prepare_documents.h"

namespace lathe {

/// What became of a document, or a part of one.
struct EncodedDocument {
  bool begins, ends;
  uint64_t bytes, repaired;
  Digest digest;  ///< of a whole document's text
  /// Whether it is among the ids, and if not why.
  enum class FilterResult { kept, empty, too_short, too_long } fate;
  size_t ids_end;  ///< in the ids of its part
};
/// A part's documents and their ids, one after another.
struct EncodedPart {
  Digest input;  ///< of the part's text
  std::vector<EncodedDocument> documents;
  std::vector<int32_t> ids;  ///< instructions: with token_mark where they are not learned
};

/// Encoders that threads borrow, since each learns pieces.
class Encoders {
 public:
  explicit Encoders(const BPE* bpe) : bpe_(bpe) {}
  /// Owned by the thread that borrowed it.
  using Encoder = std::unique_ptr<BPE::Encoder>;
  /// Null where there is no BPE.
  Encoder borrow();
  /// For the next thread.
  void give_back(Encoder one);

 private:
  const BPE* bpe_;
  std::mutex mutex_;
  std::vector<Encoder> free_;
};

/// Encodes a part. `with_ids`: false leaves the ids out. Exit::data for what can't be used, with
/// its place.
EncodedPart encode(const Part& part, const DocumentOptions& options, Encoders& encoders,
                   bool with_ids);

}  // namespace lathe
