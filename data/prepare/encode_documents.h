// The encoding of a corpus part, and the result for each document. No LibTorch header.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/io/checksum.h"
#include "data/prepare/prepare_documents.h"

namespace lathe {

/// The result for a document, or for a part of one.
struct EncodedDocument {
  bool begins, ends;
  uint64_t bytes, repaired;
  Digest digest;  ///< of a complete document's text; of conversations: of roles and texts
  /// Whether its ids are kept, and if not, why.
  enum class FilterResult { kept, empty, too_short, too_long, same_answers } result;
  size_t ids_end;  ///< end of its ids among those of the part
};
/// A part's documents and their concatenated ids.
struct EncodedPart {
  Digest input;  ///< of the part's text
  std::vector<EncodedDocument> documents;
  std::vector<int32_t>
      ids;  ///< instructions and preferences: with the bits of data/tokenizers/mark.h
};

/// A pool of encoders that threads borrow, since an encoder caches pieces.
class Encoders {
 public:
  explicit Encoders(const BPE* bpe) : bpe_(bpe) {}
  /// An encoder, owned by the thread that borrowed it.
  using Encoder = std::unique_ptr<BPE::Encoder>;
  /// Returns an encoder, or null where there is no BPE.
  Encoder borrow();
  /// Returns an encoder to the pool for the next thread.
  void give_back(Encoder one);

 private:
  const BPE* bpe_;
  std::mutex mutex_;
  std::vector<Encoder> free_;
};

/// Encodes a part; without ids unless `with_ids`. Throws Exit::data with the position of a document
/// that can't be used.
EncodedPart encode(const Part& part, const DocumentOptions& options, Encoders& encoders,
                   bool with_ids);

}  // namespace lathe
