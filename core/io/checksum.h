// Declares checksums with 64 bits and digests with 128 bits. Both are XXH3 hashes of the library
// xxHash. Checksums detect bytes that differ from the bytes that were written. They do not protect
// against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lathe {

/// A checksum of bytes that arrive in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  /// Adds the next bytes to the checksum.
  void update(const void* data, size_t bytes);
  /// Returns the checksum of all bytes so far as 16 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An XXH3 hash with 128 bits. Comparing digests finds equal texts without storing the texts.
struct Digest {
  uint64_t high = 0, low = 0;
  bool operator==(const Digest&) const = default;
};
/// A hash function for tables whose keys are digests.
struct DigestHash {
  size_t operator()(const Digest& d) const { return d.low; }
};
/// Returns the digest of a text.
Digest digest(std::string_view text);

/// Returns the checksum of a file as 16 hexadecimal digits. Calls `show` every 4 MiB with the
/// number of bytes read so far. Throws Exit::io if the file can't be read.
std::string file_checksum(const std::filesystem::path& path,
                          const std::function<void(uint64_t bytes)>& show = nullptr);

}  // namespace lathe
