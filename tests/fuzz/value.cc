// Fuzzes values of the command line. Text that is not a TOML value is a string. A value that is
// written must be read as the same value.
#include <cmath>

#include "core/io/text.h"
#include "core/io/toml.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {"12",   "-1.5e-3", "true", "nan",        "\"a\\n\\u00e9\"", "'x'",           "runs/a",
          "0x1F", "1_000",   "",     "[1, {a=2}]", "2024-01-01",      "\"\"\"a\"\"\"", "1 # one"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const ConfigValue value = parse_value(fuzz::text_of(data, size));
  const auto* number = std::get_if<double>(&value);
  const auto* text = std::get_if<std::string>(&value);
  if ((number != nullptr && std::isnan(*number)) || (text != nullptr && !is_utf8(*text))) return 0;
  fuzz::must(parse_value(toml_text(value)) == value, "a value that was written is read unchanged");
  return 0;
}
