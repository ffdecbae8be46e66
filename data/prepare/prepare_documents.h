// Documents to token shards: JSON Lines, compressed files, standard input, and texts that are
// looked through on the way.
//
// The reader splits the input into parts of 1 MiB, whose boundaries depend only on the bytes;
// workers parse, repair, hash and encode; one thread takes the results in input order and
// decides what is kept. The shards therefore do not depend on the number of workers. A tail for
// validation is written to one file first, because its size is known only at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/prepare/documents.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct DocumentOptions {
  DocumentSource source;
  fs::path out;
  Tokenizer tokenizer = Tokenizer::byte();  ///< byte or a BPE
  double val_share = 0.1;
  bool val_by_hash =
      false;  ///< a document's content decides its split; else the last tokens are for validation
  bool dedup = false;  ///< a document that came before, byte for byte, is dropped
  bool dedup_lines =
      false;  ///< a line that came before in any document is dropped, of what is not blank
  bool repair = false;  ///< bytes that are not UTF-8 become U+FFFD; else they are refused
  uint64_t min_bytes = 0, max_bytes = ~uint64_t{0};  ///< shorter and longer documents are dropped
  int64_t shard_tokens = int64_t{100'000'000};
  int workers = 1;
  double progress_seconds =
      5;  ///< between records of how far it is, from which the same call goes on
  std::function<bool()> stop =
      nullptr;  ///< asked about every mebibyte of input; true ends it with Exit::stopped
};

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json, which counts what
/// was read, kept and dropped. Each document ends with the tokenizer's token for that
/// (<|endoftext|>, <|end_of_text|> or </s>), of bytes with a line break. Texts of special tokens
/// are any text. What is written does not depend on the number of workers; memory grows with that,
/// and by 40 bytes a document (or line) where duplicates are looked for. Errors as `prepare`; but
/// once progress was recorded, whatever cuts it short, the same call goes on: it looks at what is
/// done, without encoding it again, and Exit::data where the input has changed.
void prepare_documents(const DocumentOptions& options);

}  // namespace lathe
