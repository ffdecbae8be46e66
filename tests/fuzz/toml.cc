// Fuzzes the parser of config files.
#include "core/io/toml.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {
      "[model]\nn_layer = 2\n[train]\nsteps = 5\nout_dir = \"a\\u0041\"\nmax_time = 1.5e3 # s\n",
      "[a]\nb = 'x'\nc = \"\"\"\nlong \"\" \\\n  text\"\"\"\"\nd = '''a'b'''\ne = true\nf = "
      "-inf\ng = 0x1F\n",
      "[a.b.c]\nd.e = {f = [1, [2.5, 'x']], g.h = 1979-05-27T07:32:00Z}\n[[i]]\n",
      "\xEF\xBB\xBF[a]\r\n\"b c\" = 1_000\r\n"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  try {
    for (const auto& entry : parse_toml(fuzz::text_of(data, size), "c.toml")) {
      fuzz::must(entry.key.find('.') != std::string::npos, "a key has a section");
      toml_text(entry.value);
    }
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::usage, "invalid input gives Exit::usage");
  }
  return 0;
}
