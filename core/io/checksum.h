// XXH3, 64 bits (xxHash): whether bytes are the ones that were written. No defence against intent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lathe {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  /// Takes further bytes in.
  void update(const void* data, size_t bytes);
  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3 of 128 bits, by which equal texts can be told without keeping them.
struct Digest {
  uint64_t high = 0, low = 0;
  bool operator==(const Digest&) const = default;
};
/// For hash tables keyed by a Digest.
struct DigestHash {
  size_t operator()(const Digest& d) const { return d.low; }
};
/// Of a text.
Digest digest(std::string_view text);

/// Checksum of a file; `show` is called now and then with the number of bytes read. Exit::io where
/// it can't be read.
std::string file_checksum(const std::filesystem::path& path,
                          const std::function<void(uint64_t bytes)>& show = nullptr);

}  // namespace lathe
