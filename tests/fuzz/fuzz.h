// Helpers of the fuzz targets: a corpus that starts with the target's seeds, and files in memory.
//
// A target is one file with seeds() and LLVMFuzzerTestOneInput. It passes each input to a parser,
// which may return a value or throw a lathe::Error. Anything else is a fault: a crash, another
// exception, a report of a sanitizer, or more than ten seconds.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lathe::fuzz {

/// Returns the inputs with which the search starts. Each target defines this function.
std::vector<std::string> seeds();

/// Ends the process as a fault unless the condition holds.
inline void must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "must hold: %s\n", what);
  std::abort();
}

/// A file in memory. Its path is valid only in this process.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", 0)) { must(fd_ >= 0, "memfd_create"); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void write(std::string_view bytes) const {
    must(ftruncate(fd_, 0) == 0, "ftruncate");
    must(pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
         "pwrite");
  }

 private:
  int fd_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace lathe::fuzz

/// Writes the seeds into the corpus, which is the first folder on the command line. This function
/// is defined in a header so that each target is a single file.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string word = (*argv)[i];
    if (word.starts_with("-") || !std::filesystem::is_directory(word)) continue;
    int n = 0;
    for (const auto& seed : lathe::fuzz::seeds())
      std::ofstream(word + "/seed" + std::to_string(n++), std::ios::binary) << seed;
    break;
  }
  return 0;
}
