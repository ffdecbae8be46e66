// Fuzzes the record of a preparation in progress.
#include "data/prepare/progress.h"

#include "data/folder.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {progress_record({3, 1000, 20, 255, 1000, "0123456789abcdef", "aa", "bb"}, "c").dump(),
          progress_record({0, 0, 0, 0, 0, "", "", ""}, "another").dump()};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  try {
    const Json record = parse_json(std::string(fuzz::text_of(data, size)), "record", Exit::data);
    const auto p = read_progress(record, "c", "record");
    if (!p) return 0;
    fuzz::must(
        p->parts >= 0 && p->train >= 0 && p->val >= 0 && p->largest_id >= 0 && p->learned >= 0,
        "counts are not negative");
    const auto again = read_progress(progress_record(*p, "c"), "c", "record");
    fuzz::must(again && again->parts == p->parts && again->train == p->train &&
                   again->val == p->val && again->largest_id == p->largest_id &&
                   again->learned == p->learned && again->input == p->input &&
                   again->train_sum == p->train_sum && again->val_sum == p->val_sum,
               "a record is written as it was read");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
