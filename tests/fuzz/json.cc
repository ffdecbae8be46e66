// Fuzzes the parser of JSON, which reads state.json, manifests and headers.
#include "core/io/json.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {
      R"({"format": "lathe-checkpoint-1", "files": {"state.json": {"bytes": 12, "xxh3": "0123456789abcdef"}}})",
      R"({"step": 7, "val_loss": 2.5, "best": "nan", "due": true, "none": null, "list": [-1, 1e-3, [[]], "\u00e9\ud83d\ude00"]})",
      "[18446744073709551615, -9223372036854775808, 0.1]", " 1 ", "\"\\u0000\""};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  try {
    const Json json = parse_json(fuzz::text_of(data, size), "j", Exit::data);
    const std::string text = json.dump();
    fuzz::must(parse_json(text, "j", Exit::internal).dump() == text,
               "JSON that was written is read unchanged");
    for (const char* key : {"step", "bytes", "val_loss"}) {
      try {
        const int64_t n = json_integer(json, key, 0, 1000, "j", Exit::data);
        fuzz::must(n >= 0 && n <= 1000, "an integer is in its range");
      } catch (const Error& e) {
        fuzz::must(e.code() == Exit::data, "an error has the exit code that was given");
      }
      try {
        json_real(json, key, "j", Exit::data);
      } catch (const Error&) {
      }
    }
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "an error has the exit code that was given");
  }
  return 0;
}
