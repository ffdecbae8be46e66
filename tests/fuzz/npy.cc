// Fuzzes .npy files: the header and the bytes.
#include "data/examples/npy.h"

#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  const auto file = [](char version, const std::string& header, size_t bytes) {
    const uint32_t length = static_cast<uint32_t>(header.size());
    return std::string("\x93NUMPY") + version + '\0' +
           std::string(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4) + header +
           std::string(bytes, 'x');
  };
  return {file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", 24),
          file(2, "{'descr': '|u1', 'fortran_order': True, 'shape': (5,), }\n", 5),
          file(3, "{\"shape\": (), \"descr\": \"=i8\", \"fortran_order\": False}", 8),
          file(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (0L, 4L)}", 0),
          file(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4)};
}
}  // namespace lathe::fuzz

volatile unsigned sink = 0;  // keeps reads from being optimized away

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  try {
    const NpyFile read(file.path());
    uint64_t bytes = static_cast<uint64_t>(array_type_bytes(read.type()));
    for (const int64_t n : read.sizes()) bytes *= static_cast<uint64_t>(n);
    fuzz::must(bytes == read.bytes().size(), "an array's bytes match its shape");
    fuzz::must(bytes <= size, "the elements lie in the file");
    unsigned sum = 0;
    for (const std::byte b : read.bytes()) sum += static_cast<unsigned>(b);
    sink = sum;
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
