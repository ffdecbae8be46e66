// Files that are read from beginning to end, compressed or not, and standard input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"

namespace lathe {

/// A regular file, or standard input ("-"), as bytes in order. gzip (RFC 1952) and Zstandard (RFC
/// 8878) are recognized by their first bytes, whatever the name, and decompressed; consecutive
/// members or frames are one text. Memory does not grow with the file. Throws Exit::data with the
/// file's name if the file is damaged, cut short, or followed by anything but compressed data.
class InputStream {
 public:
  explicit InputStream(const std::string& path);
  ~InputStream();
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;

  /// Appends up to `most` bytes to `out`. Returns false at the end, where it appends nothing.
  bool read(std::string& out, size_t most);
  /// Returns how many bytes of the file itself were read so far.
  uint64_t consumed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
