// Declares InputStream, which reads standard input or a file from beginning to end. Compressed data
// are decompressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"

namespace lathe {

/// Reads a regular file, or standard input if the path is "-", as a sequence of bytes. gzip (RFC
/// 1952) and Zstandard (RFC 8878) data are recognized by their first bytes, whatever the name of
/// the file, and decompressed. Consecutive gzip members or Zstandard frames are read as one text.
/// Memory use does not grow with the size of the file. The constructor throws Exit::data with the
/// path if the file can't be opened or is not a regular file. read() throws Exit::data with the
/// path if reading fails, or if compressed data are damaged, cut short or followed by other bytes.
class InputStream {
 public:
  explicit InputStream(const std::string& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Appends up to `most` bytes to `out`. At the end of the stream, appends nothing and returns
  /// false.
  bool read(std::string& out, size_t most);
  /// Returns the number of bytes that were read from the file so far, counted before decompression.
  uint64_t consumed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
