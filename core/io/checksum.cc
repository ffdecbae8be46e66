#include "core/io/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>

#include "core/io/file.h"

namespace lathe {

struct Checksum::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
void Checksum::update(const void* data, size_t bytes) {
  XXH3_64bits_update(state_->xxh, data, bytes);
}

std::string Checksum::hex() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits_digest(state_->xxh)));
  return text;
}

Digest digest(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

std::string file_checksum(const std::filesystem::path& path,
                          const std::function<void(uint64_t)>& show) {
  const MappedFile file(path, Exit::io);
  Checksum sum;
  // Read small parts and release each after use, so that a large file does not count as this
  // process's memory.
  constexpr size_t part = size_t{16} << 20;
  for (size_t at = 0; at < file.bytes().size(); at += part) {
    const auto bytes = file.bytes().subspan(at, std::min(part, file.bytes().size() - at));
    sum.update(bytes.data(), bytes.size());
    file.release(bytes);
    if (show) show(at + bytes.size());
  }
  return sum.hex();
}

}  // namespace lathe
