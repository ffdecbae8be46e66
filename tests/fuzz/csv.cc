// Fuzzes the reader of CSV. Fields that were read are written again in quotes, and must be read as
// the same fields.
#include "data/prepare/csv.h"

#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {"a,b,label\n1,2.5,x\r\n-3e4, +4 ,y\n", "\xEF\xBB\xBF\"a \"\"b\"\"\",\"c\nd\"\n\n1,2",
          "1,,\n,\n\"\"\n", "a;b\n1;2,5\n", "a\tb\n\t \t\n"};
}

void read_twice(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  std::string again;
  std::vector<std::vector<std::string>> rows;
  int64_t line = 0;
  for (CsvReader reader(text, "text", separator); reader.next(fields); again += '\n') {
    must(reader.line() > line && reader.at() <= text.size() && !fields.empty(),
         "rows are in order, and no row is empty");
    line = reader.line();
    rows.emplace_back(fields.begin(), fields.end());
    for (size_t i = 0; i < fields.size(); ++i) {
      csv_number(fields[i]);
      if (i > 0) again += separator;
      again += '"';
      for (const char c : fields[i]) again += c == '"' ? std::string("\"\"") : std::string(1, c);
      again += '"';
    }
  }

  size_t n = 0;
  for (CsvReader reader(again, "again", separator); reader.next(fields); ++n) {
    must(n < rows.size() && std::vector<std::string>(fields.begin(), fields.end()) == rows[n],
         "the fields are those that were written");
  }
  must(n == rows.size(), "all rows that were written are read");
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const std::string_view text = fuzz::text_of(data, size);
  for (const char separator : {',', ';', '\t'}) {
    try {
      fuzz::read_twice(text, separator);
    } catch (const Error& e) {
      fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
    }
  }
  return 0;
}
