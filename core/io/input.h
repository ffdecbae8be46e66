// Files that are read from begin to end, compressed or not, and standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"

namespace lathe {

/// A regular file, or standard input ("-"), as bytes in order. gzip (RFC 1952) and Zstandard (RFC
/// 8878) are recognized by their first bytes, whatever the name, and decompressed; members and
/// frames one behind the other are one text. Memory does not grow with the file. Errors are
/// Exit::data and name the file: one that is damaged, cut short, or followed by what is no
/// compressed data.
class InputStream {
 public:
  explicit InputStream(const std::string& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Appends up to `most` bytes to `out`; false at the end, where nothing was appended.
  bool read(std::string& out, size_t most);
  /// Bytes of the file itself that were read so far.
  uint64_t consumed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
