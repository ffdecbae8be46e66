// Fuzzes files that may be compressed by gzip or Zstandard.
#include <zlib.h>
#include <zstd.h>

#include "core/io/input.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  const std::string text =
      "the lathe turns wood, and the tool cuts what turns. the lathe turns wood.";
  std::string packed(ZSTD_compressBound(text.size()), ' ');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  z_stream z{};
  std::string gz(200, ' ');
  must(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "deflate");
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(gz.data());
  z.avail_out = static_cast<uInt>(gz.size());
  must(deflate(&z, Z_FINISH) == Z_STREAM_END, "deflate");
  gz.resize(z.total_out);
  deflateEnd(&z);
  return {text, packed, gz, packed + packed, gz + gz, ""};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  const bool packed = size >= 2 && (data[0] == 0x1f || data[0] == 0x28);
  try {
    InputStream in(file.path());
    std::string text;
    while (text.size() < (size_t{8} << 20) && in.read(text, 4096)) {
    }
    fuzz::must(packed || text == fuzz::text_of(data, size), "plain files are read unchanged");
    fuzz::must(in.consumed() <= size, "consumed() is at most the size of the file");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
