// Documents of files: texts, or the lines of JSON Lines, as parts that workers take. No LibTorch
// header.
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

/// What a corpus is read from.
struct DocumentSource {
  std::vector<std::string> files;  ///< "-": standard input
  /// "text": a file is a document, or several with `separator` between. "jsonl": a line is one.
  /// "auto": by the name, .jsonl or .ndjson (and .gz or .zst behind it). "instructions": a line of
  /// JSON Lines is a conversation (data/prepare/conversations.h).
  std::string format = "auto";
  std::string field =
      "text";  ///< JSON Lines: where an object has the text, or of instructions the messages
  std::string
      separator{};  ///< text: what stands between documents, as <|endoftext|>; empty: nothing does
};
/// Whether a file is JSON Lines.
bool is_jsonl(const DocumentSource& source, const std::string& file);

/// A part of the input, about a mebibyte: whole lines of JSON Lines, whole documents of text, or a
/// part of a longer one.
struct Part {
  std::string file;  ///< for messages
  bool jsonl = false;
  std::string text;
  uint64_t place = 0;  ///< its first line from 1 (JSON Lines), or its first byte (text)
  bool begins = true, ends = true;  ///< text: whether it has the begin, and the end, of a document
  /// In place of the text, where it was filtered: its documents.
  std::optional<std::vector<std::string>> documents{};
};
/// Calls f with each line of a part that is not white space alone, and its number in the file, from
/// 1; without the byte order mark that a file may begin with.
void each_line(const Part& part,
               const std::function<void(uint64_t line, std::string_view text)>& f);

/// Reads the parts of all files in order. A long document is cut behind a line break with no white
/// space on either side, where a piece ends by the patterns of GPT-2, Llama 3 and Qwen 2.
class PartReader {
 public:
  /// Longer documents are cut into parts, unless they must be `whole`: then Exit::data with the
  /// remedy where one has more than 64 MiB.
  PartReader(const DocumentSource& source, bool whole, size_t part_bytes = size_t{1} << 20,
             size_t most_whole = size_t{64} << 20);
  /// False at the end.
  bool next(Part& part);
  /// Bytes of files that were read.
  uint64_t consumed() const { return before_ + (stream_ ? stream_->consumed() : 0); }

 private:
  bool next_text(Part& part);
  bool next_lines(Part& part);
  bool read_to(size_t bytes);

  const DocumentSource& source_;
  bool whole_;
  size_t part_bytes_, most_whole_;
  size_t file_ = 0;  // the next one
  std::unique_ptr<InputStream> stream_;
  std::string name_, buffer_;
  uint64_t before_ = 0, place_ = 0;
  bool jsonl_ = false, ended_ = true,
       within_ = false;  // within a document that a part has the begin of
  size_t searched_ = 0;  // bytes of buffer_ without a line's end
};

/// Calls f with each document of a part, in order. Exit::data with file and line for a line that is
/// no JSON object with a text in `field`.
void each_document(const Part& part, const DocumentSource& source,
                   const std::function<void(std::string_view)>& f);

/// Drops lines that came before in any document, but for white space around them; lines of white
/// space alone stay. Memory grows by some 40 bytes for each different line.
class LineFilter {
 public:
  /// Puts what is left in place of the part's documents. Errors as each_document.
  void filter(Part& part, const DocumentSource& source);
  uint64_t dropped() const { return dropped_; }

 private:
  std::unordered_set<Digest, DigestHash> seen_;
  uint64_t dropped_ = 0;
};

/// Puts U+FFFD in place of each byte that is no part of well-formed UTF-8; how many.
uint64_t repair_utf8(std::string& text);

}  // namespace lathe
