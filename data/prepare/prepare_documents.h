// Converts documents to token shards. The input can be JSON Lines, compressed files or standard
// input, and documents can be filtered.
//
// The reader splits the input into parts of about 1 MiB, whose boundaries depend only on the bytes.
// Workers parse, repair, hash and encode the parts. One thread takes the results in input order and
// decides which documents to keep. The shards therefore do not depend on the number of workers. If
// the last tokens are for validation, all tokens are first written to one file and then divided,
// because the number of tokens is known only at the end.
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
  Tokenizer tokenizer = Tokenizer::byte();  ///< of the kind "byte" or "bpe"
  double val_share = 0.1;
  /// Whether a hash of each document's content decides its split. Otherwise, the last tokens are
  /// for validation.
  bool val_by_hash = false;
  bool has_val_tail() const { return !val_by_hash && val_share > 0; }
  bool dedup = false;  ///< drop a document that is bytewise equal to an earlier document
  /// Whether to drop a line that occurred earlier, in any document, unless the line is blank.
  bool dedup_lines = false;
  bool repair = false;  ///< replace bytes that are not UTF-8 by U+FFFD; if false, they are an error
  uint64_t min_bytes = 0, max_bytes = ~uint64_t{0};  ///< shorter and longer documents are dropped
  int64_t shard_tokens = int64_t{100'000'000};
  int workers = 1;
  /// Seconds between records of the progress. A repeated call resumes from the last record.
  double progress_seconds = 5;
  /// Called about every mebibyte of input; true ends the preparation with Exit::stopped.
  std::function<bool()> stop = nullptr;
};

/// Returns the total size of all files in bytes; 0, which means unknown, if standard input ("-") is
/// among them. Throws Exit::data for a file that does not exist.
uint64_t input_bytes(const std::vector<std::string>& files);

/// Writes train.bin, val.bin (or train_000000.bin ...) and, last, manifest.json, which counts the
/// documents that were read, kept and dropped. Each document ends with the tokenizer's end token
/// (<|endoftext|>, <|end_of_text|> or </s>), or with a line break if the tokens are bytes. The
/// texts of special tokens in documents are encoded as ordinary text. The output does not depend on
/// the number of workers. Memory grows with the number of workers and, if duplicates are dropped,
/// by about 40 bytes for each document (or line).
///
/// Throws the errors of prepare() in data/prepare/prepare.h. If a call is interrupted after
/// progress was recorded, the same call resumes: it reads the finished part of the input again
/// without encoding it, and throws Exit::data if that part has changed.
void prepare_documents(const DocumentOptions& options);

}  // namespace lathe
