// Fuzzes the check for UTF-8, and the byte and character tokenizers: text to ids and back.
#include "core/io/text.h"
#include "data/tokenizers/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {"na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n",
          "a\xC0\x80",
          "\xED\xA0\x80",
          "\xF4\x90\x80\x80",
          "\xE2\x82",
          ""};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const std::string text(fuzz::text_of(data, size));
  std::vector<int64_t> ids(text.begin(), text.end());
  for (int64_t& id : ids) id -= 128;
  Tokenizer::byte().decode(ids);
  fuzz::must(Tokenizer::byte().decode(Tokenizer::byte().encode(text)) == text,
             "decoding the ids of bytes gives the bytes");
  try {
    const Tokenizer tokenizer = Tokenizer::characters(text);
    fuzz::must(is_utf8(text), "only UTF-8 text gives a tokenizer");
    fuzz::must(tokenizer.decode(tokenizer.encode(text)) == text,
               "decoding the ids of a text gives the text");
    fuzz::must(is_utf8(tokenizer.decode(ids)), "decoded text is UTF-8");
    const Tokenizer again = Tokenizer::from("char", tokenizer.vocabulary());
    fuzz::must(again.encode(text) == tokenizer.encode(text),
               "a saved vocabulary gives the same ids");
  } catch (const Error& e) {
    fuzz::must(!is_utf8(text) && e.code() == Exit::data, "UTF-8 text gives a tokenizer");
  }
  return 0;
}
