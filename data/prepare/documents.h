// Reads documents from files (texts, or the lines of JSON Lines) in parts for worker threads.
// Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/input.h"

namespace lathe {

/// The input of a corpus.
struct DocumentSource {
  std::vector<std::string> files;  ///< paths of the input files; "-" is standard input
  /// "text": a file is one document, or several with `separator` between them. "jsonl": a line is a
  /// document. "auto": "jsonl" if the name ends in .jsonl or .ndjson (optionally followed by .gz or
  /// .zst), otherwise "text". "instructions": a line of JSON Lines is a conversation.
  /// "preferences": a line of JSON Lines is a pair of answers. data/prepare/conversations.h
  /// describes the lines of these two formats.
  std::string format = "auto";
  /// JSON Lines: the field that has a document's text, or the messages of a conversation.
  std::string field = "text";
  /// text: the string between documents, such as <|endoftext|>. If empty, a file is one document.
  std::string separator{};
};
/// Returns whether a name ends in .gz or .zst, in upper or lower case.
bool has_compressed_name(const fs::path& file);
/// Returns whether a file is read as JSON Lines.
bool is_jsonl(const DocumentSource& source, const std::string& file);

/// A part of the input of about 1 MiB: complete lines of JSON Lines, complete documents of text, or
/// a piece of a longer document.
struct Part {
  std::string file;  ///< name of the file, for messages
  bool jsonl = false;
  std::string text;
  /// Position of the part in the file. For JSON Lines, this is the number of its first line, from
  /// 1; for text, the offset of its first byte, from 0.
  uint64_t place = 0;
  /// Text: whether the part contains the beginning of its first document, and the end of its last
  /// document.
  bool begins = true, ends = true;
  /// The documents that LineFilter::filter() left, which replace `text`; nullopt if filter() was
  /// not called.
  std::optional<std::vector<std::string>> documents{};
};
/// Calls f for each line of a part of JSON Lines, except for lines of only white space. `line` is
/// the line's number in the file, from 1. A byte order mark at the beginning of a file is removed.
void each_line(const Part& part,
               const std::function<void(uint64_t line, std::string_view text)>& f);

/// Reads the parts of all files in order. A long document is cut after a line break with no white
/// space on either side. The pre-tokenizer patterns of GPT-2, Llama 3 and Qwen 2 all end a piece
/// there, so the cut does not change the tokens. A document without such a line break is cut
/// between two characters.
class PartReader {
 public:
  /// Creates a reader that returns parts of about `part_bytes` bytes. `source` must outlive the
  /// reader. Longer documents of text are cut into parts unless `whole` is true; lines of JSON
  /// Lines are never cut. If a document that is not cut has more than `most_whole` bytes, next()
  /// throws Exit::data with a message that contains a remedy.
  PartReader(const DocumentSource& source, bool whole, size_t part_bytes = size_t{1} << 20,
             size_t most_whole = size_t{64} << 20);
  /// Reads the next part; returns false at the end.
  bool next(Part& part);
  /// Returns how many bytes of the files have been read so far.
  uint64_t consumed() const { return before_ + (stream_ ? stream_->consumed() : 0); }

 private:
  bool next_text(Part& part);
  bool next_lines(Part& part);
  bool read_to(size_t bytes);

  const DocumentSource& source_;
  bool whole_;
  size_t part_bytes_, max_document_bytes_;
  size_t file_ = 0;  // index of the next file to open
  std::unique_ptr<InputStream> stream_;
  std::string name_, buffer_;
  uint64_t before_ = 0, place_ = 0;
  // within_: whether an earlier part contains the beginning of the current document.
  // begins_: whether the file's first bytes are still to be read.
  bool jsonl_ = false, ended_ = true, within_ = false, begins_ = true;
  size_t searched_ = 0;  // number of bytes at the beginning of buffer_ without a line break
};

/// Calls f with each document of a part, in order. Throws Exit::data with file and line for a line
/// that is not a JSON object with a text in `field`.
void each_document(const Part& part, const DocumentSource& source,
                   const std::function<void(std::string_view)>& f);

/// Drops each line that occurred earlier, in any document. The comparison ignores white space
/// around a line. Lines of only white space are kept. Memory grows by about 40 bytes for each
/// different line.
class LineFilter {
 public:
  /// Replaces the part's documents by what remains of them. Throws the errors of each_document.
  void filter(Part& part, const DocumentSource& source);
  uint64_t dropped() const { return dropped_; }

 private:
  std::unordered_set<Digest, DigestHash> seen_;
  uint64_t dropped_ = 0;
};

/// Replaces each byte that does not belong to well-formed UTF-8 by U+FFFD; returns the number of
/// such bytes.
uint64_t repair_utf8(std::string& text);

}  // namespace lathe
