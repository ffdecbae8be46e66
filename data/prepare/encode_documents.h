// Encodes a part of a corpus to token ids and filters its documents. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/io/checksum.h"
#include "data/prepare/prepare_documents.h"

namespace lathe {

/// The result for a document, or for a piece of a document that was cut.
struct EncodedDocument {
  bool begins, ends;         ///< whether the part has the document's beginning, and its end
  uint64_t bytes, repaired;  ///< bytes of the text, and bytes that repair_utf8 replaced
  Digest digest;  ///< digest of a complete document's text, or of a conversation's roles and texts
  /// Whether the document's ids are kept, and if not, why not.
  enum class FilterResult { kept, empty, too_short, too_long, same_answers } result;
  size_t ids_end;  ///< one past the index of the document's last id in EncodedPart::ids
};
/// A part's documents and their concatenated ids.
struct EncodedPart {
  Digest input;  ///< digest of the part's text
  std::vector<EncodedDocument> documents;
  std::vector<int32_t>
      ids;  ///< instructions and preferences have the flag bits of data/tokenizers/mark.h
};

/// A pool of encoders. Threads borrow them instead of creating new ones, since an encoder caches
/// the ids of pieces.
class Encoders {
 public:
  explicit Encoders(const BPE* bpe) : bpe_(bpe) {}
  /// An encoder, owned by the thread that borrowed it.
  using Encoder = std::unique_ptr<BPE::Encoder>;
  /// Returns an encoder, or null if the tokenizer is not a BPE. In that case, bytes are the tokens.
  Encoder borrow();
  /// Puts an encoder back into the pool.
  void give_back(Encoder one);

 private:
  const BPE* bpe_;
  std::mutex mutex_;
  std::vector<Encoder> free_;
};

/// Encodes a part. If `with_ids` is false, leaves `ids` empty. Throws Exit::data with the position
/// of a document that can't be used.
EncodedPart encode(const Part& part, const DocumentOptions& options, Encoders& encoders,
                   bool with_ids);

}  // namespace lathe
