// XXH3, 64 bits (xxHash): detects bytes that differ from those written. It does not protect against
// an attacker.
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
  /// Appends bytes to those that were added before.
  void update(const void* data, size_t bytes);
  /// Returns the checksum of all bytes so far as 16 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The XXH3 hash of 128 bits: it identifies equal texts without storing them.
struct Digest {
  uint64_t high = 0, low = 0;
  bool operator==(const Digest&) const = default;
};
/// A hash for tables keyed by a Digest.
struct DigestHash {
  size_t operator()(const Digest& d) const { return d.low; }
};
/// Returns the digest of a text.
Digest digest(std::string_view text);

/// Returns the checksum of a file as 16 hexadecimal digits. Calls `show` from time to time with the
/// number of bytes read. Throws Exit::io if the file can't be read.
std::string file_checksum(const std::filesystem::path& path,
                          const std::function<void(uint64_t bytes)>& show = nullptr);

}  // namespace lathe
