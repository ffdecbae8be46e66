#include "core/io/checksum.h"

#include <xxhash.h>

#include <cstdio>
#include <span>

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
  Checksum sum;
  uint64_t read = 0;
  read_in_parts(path, Exit::io, size_t{4} << 20, [&](std::span<const std::byte> bytes) {
    sum.update(bytes.data(), bytes.size());
    read += bytes.size();
    if (show) show(read);
  });
  return sum.hex();
}

}  // namespace lathe
