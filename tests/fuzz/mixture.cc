// Fuzzes the parts of a mixture. If the first byte of an input is odd, the remaining bytes are read
// as the config key data.mix, and otherwise as manifest.json.
#include <cmath>

#include "data/mixture/mixture_manifest.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {"\x01web:0.7,code:0.3", "\x01one:1", "\x01a:1e-300,b:1e300",
          "\x02{\"format\": \"lathe-mixture-1\", \"kind\": \"mixture\", \"sources\": [{\"name\": "
          "\"web\", \"weight\": "
          "0.7}]}"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  const bool typed = (data[0] & 1) != 0;
  try {
    std::vector<MixturePart> parts;
    if (typed) {
      parts = read_mix(text);
    } else {
      parts = read_mixture_manifest(parse_json(text, "manifest.json", Exit::data), "manifest.json");
    }
    fuzz::must(!parts.empty(), "a mixture has a source");
    for (const MixturePart& p : parts) {
      fuzz::must(!p.name.empty(), "a source has a name");
      fuzz::must(p.weight > 0 && std::isfinite(p.weight), "a share is above 0");
    }
  } catch (const Error& e) {
    fuzz::must(e.code() == (typed ? Exit::usage : Exit::data), "the error has the right code");
  }
  return 0;
}
