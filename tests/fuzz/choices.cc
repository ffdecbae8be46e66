// Fuzzes the reader of multiple-choice questions.
#include "train/tasks/choices.h"

#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {"{\"context\": \"1 + 1 =\", \"endings\": [\"2\", \"3\"], \"label\": 0}\n",
          "{\"context\": \"\", \"endings\": [\"a\\u00e9\", \"b\", \"c\"], \"label\": 2}\n\n{}"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  try {
    const std::vector<MultipleChoice> all = read_choices(file.path());
    fuzz::must(!all.empty(), "a file has questions");
    for (const MultipleChoice& c : all) {
      fuzz::must(c.endings.size() >= 2, "a question has at least two endings");
      fuzz::must(c.label >= 0 && c.label < static_cast<int64_t>(c.endings.size()),
                 "the label is the index of an ending");
    }
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
