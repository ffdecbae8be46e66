// Fuzzes safetensors files: the length, the header and the bytes.
#include <cstring>

#include "core/io/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  const auto file = [](const std::string& header, size_t bytes) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
           std::string(bytes, 'x');
  };
  return {file(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("w":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})",
               20),
          file(R"({"__metadata__":{"a":"b"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
               R"("z":{"dtype":"U8","shape":[0,4],"data_offsets":[8,8]}}  )",
               8),
          file("{}", 0)};
}
}  // namespace lathe::fuzz

volatile unsigned sink = 0;  // keeps reads from being optimized away

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  try {
    const SafetensorsFile read(file.path());
    size_t bytes = 0;
    unsigned sum = 0;
    for (const auto& t : read.tensors()) {
      fuzz::must(static_cast<uint64_t>(t.numel()) *
                         static_cast<uint64_t>(safetensors_dtype_size(t.dtype)) ==
                     t.bytes.size(),
                 "a tensor's bytes match its shape");
      for (const std::byte b : t.bytes) sum += static_cast<unsigned>(b);
      bytes += t.bytes.size();
      fuzz::must(read.find(t.name) == &t, "a tensor is found by its name");
    }
    sink = sum;
    fuzz::must(bytes <= size, "tensors lie in the file");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::checkpoint, "an invalid file gives Exit::checkpoint");
  }
  return 0;
}
