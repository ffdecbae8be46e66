// Files that are read from beginning to end, compressed or not, and standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"

namespace lathe {

/// A regular file, or standard input ("-"), as bytes in order. gzip (RFC 1952) and Zstandard (RFC
/// 8878) are recognized by their first bytes, whatever the name, and decompressed; consecutive gzip
/// members or Zstandard frames are read as one text. Memory use does not grow with the file. The
/// constructor throws Exit::data with the path if the file can't be opened or is not a regular
/// file; read() throws the same error if reading fails, or if compressed data are damaged, cut
/// short or followed by anything else.
class InputStream {
 public:
  explicit InputStream(const std::string& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Appends up to `most` bytes to `out`. At the end, appends nothing and returns false.
  bool read(std::string& out, size_t most);
  /// Returns the number of bytes that were read from the file so far, counted before decompression.
  uint64_t consumed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
