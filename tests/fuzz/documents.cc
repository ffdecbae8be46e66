// Fuzzes documents. The first byte of an input sets how the file is read.
#include "data/prepare/documents.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  const auto read_as = [](char how, const std::string& text) { return how + text; };
  return {read_as(0, "one\ntwo\n\nthree--four--"), read_as(1, "one--two--\n--three"),
          read_as(2, "{\"text\": \"a\\u0041\"}\n\n{\"text\": \"\"}"),
          read_as(40, "long\nlines\nof\ntext\n"), read_as(5, "one--two--three")};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  if (size == 0) return 0;
  static const fuzz::MemoryFile file;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  file.write(text);
  const bool jsonl = (data[0] & 2) != 0, separated = (data[0] & 1) != 0 && !jsonl;
  const DocumentSource source{.files = {file.path()},
                              .format = jsonl ? "jsonl" : "text",
                              .field = "text",
                              .separator = separated ? "--" : ""};
  const bool packed = size >= 3 && (data[1] == 0x1f || data[1] == 0x28);
  try {
    PartReader reader(source, (data[0] & 4) != 0, 1 + data[0] / 8, 512);
    std::string all;
    bool open = false;
    for (Part part; reader.next(part);) {
      fuzz::must(jsonl || part.begins == !open, "a document continues where it was left");
      open = !part.ends;
      all += part.text;
      size_t documents = 0;
      each_document(part, source, [&](std::string_view one) {
        std::string copy(one);
        repair_utf8(copy);
        ++documents;
      });
      fuzz::must(jsonl || documents >= 1, "a part of text has a document");
      fuzz::must(part.ends || documents == 1, "an unfinished part has one document");
      if (all.size() > (size_t{1} << 14)) return 0;  // a decompression bomb
    }
    fuzz::must(!open, "the last document ends");
    fuzz::must(packed || all == text, "together the parts are the file");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
