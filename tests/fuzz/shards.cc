// Fuzzes data folders. The bytes of an input before its first NUL are manifest.json, and the bytes
// after the NUL are train.bin. If there are no bytes before the NUL, the folder has no manifest.
#include "data/tokens/tokens.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  const std::string manifest =
      R"({"format":"lathe-data-1","tokenizer":"char","vocab_size":3,"largest_id":2,"dtype":"uint16",)"
      R"("train":[{"file":"train.bin","tokens":4,"xxh3":"0123456789abcdef"}],"val":[],"vocabulary":["\n","a","b"]})";
  const auto llmc = [](int32_t magic, int32_t version, int32_t tokens) {
    std::vector<int32_t> words(256);
    words[0] = magic;
    words[1] = version;
    words[2] = tokens;
    return std::string(reinterpret_cast<const char*>(words.data()), 1024);
  };
  const std::string none(1, '\0');
  return {manifest + none + std::string("\1\0\2\0\0\0\1\0", 8), none + std::string("\1\0\2\0", 4),
          none + llmc(20240520, 1, 2) + std::string("\1\0\2\0", 4),
          none + llmc(20240801, 7, 1) + std::string("\1\0\2\0", 4),
          none + llmc(20240520, 2, 2) + std::string("\1\0\2\0", 4)};
}
}  // namespace lathe::fuzz

namespace {
/// A folder in memory with a link train.bin to a file in memory, and a separate file in memory for
/// the manifest.
struct Folder {
  lathe::fuzz::MemoryFile manifest, train;
  lathe::fs::path path;
  Folder() {
    std::string pattern = "/dev/shm/lathe-fuzz-XXXXXX";
    lathe::fuzz::must(mkdtemp(pattern.data()) != nullptr, "a folder can be made in /dev/shm");
    path = pattern;
    lathe::fs::create_symlink(train.path(), path / "train.bin");
  }
  ~Folder() {
    std::error_code error;
    lathe::fs::remove_all(path, error);
  }
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const Folder folder;
  const std::string_view text = fuzz::text_of(data, size);
  const size_t cut = std::min(text.find('\0'), text.size());
  folder.manifest.write(text.substr(0, cut));
  folder.train.write(text.substr(std::min(cut + 1, text.size())));
  try {
    std::optional<DataManifest> manifest;
    if (cut > 0) {
      manifest =
          read_manifest("/proc/self/fd", fs::path(folder.manifest.path()).filename().string());
      fuzz::must(manifest->vocab_size >= 1 && manifest->vocab_size <= max_vocab_size,
                 "the vocabulary is in its range");
      fuzz::must(manifest->largest_id >= 0 && manifest->largest_id < manifest->vocab_size,
                 "the largest id is in the vocabulary");
    }
    const TokenFile tokens(folder.path, "train", manifest);
    tokens.matches(tokens.fingerprint());
    std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
    tokens.check_ids(1000);
    tokens.read(0, tokens.size(), 1000, ids.data());
    if (manifest) tokens.verify();
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
