// Tests of preparing example sets: how CSV, IDX and arrays are read, which input is refused, and
// that a preparation is complete or leaves no files.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "data/examples/example_manifest.h"
#include "data/prepare/csv.h"
#include "data/prepare/example_source.h"
#include "data/prepare/prepare_examples.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns the examples of a split as numbers, each with its target last.
std::vector<std::vector<double>> rows_of(const fs::path& dir, const std::string& split) {
  const ExampleArray inputs(dir / (split + "_inputs.npy"), ""),
      targets(dir / (split + "_targets.npy"), "");
  REQUIRE(inputs.examples() == targets.examples());
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < inputs.examples(); ++i) {
    std::vector<double> row(static_cast<size_t>(inputs.numel() + targets.numel()));
    inputs.read(i, row.data());
    targets.read(i, row.data() + inputs.numel());
    rows.push_back(row);
  }
  return rows;
}

/// A folder with input files and the example set that is prepared from them.
struct Prepared {
  TempFolder f;
  ExampleOptions options{.val_share = 0};

  void write(const std::string& name, const std::string& text) { write_file(f / name, text); }
  ExampleManifest operator()(const std::vector<std::string>& files) {
    options.inputs.clear();
    for (const auto& name : files) options.inputs.push_back((f / name).string());
    options.out = f / "out";
    fs::remove_all(options.out);
    prepare_examples(options);
    return read_example_manifest(options.out);
  }
  ExampleManifest csv(const std::string& text) {
    write("a.csv", text);
    return (*this)({"a.csv"});
  }
  std::vector<std::vector<double>> rows(const std::string& split = "train") {
    return rows_of(options.out, split);
  }
  /// Prepares the files, and returns the message of the error, or "" if there is none. Checks that
  /// an error has the exit code `code` and leaves no output.
  std::string problem(const std::vector<std::string>& files, Exit code = Exit::data) {
    try {
      (*this)(files);
    } catch (const Error& e) {
      CHECK(e.code() == code);
      CHECK(!fs::exists(options.out));
      return e.what();
    }
    return "";
  }
  std::string csv_problem(const std::string& text, Exit code = Exit::data) {
    write("a.csv", text);
    return problem({"a.csv"}, code);
  }
};

using Rows = std::vector<std::vector<double>>;

TEST_CASE("a .tsv has tabs unless its first line has only the usual separator",
          "[prepare_examples]") {
  CHECK(find_separator("a.tsv", "x\ty;z\n", ';') == '\t');
  CHECK(find_separator("a.tsv", "\n\nx;y;z\n1\t2\n", ';') == ';');
  CHECK(find_separator("a.tab", "x|y\n", '|') == '|');
  CHECK(find_separator("a.tsv", "x\n1,2\n", ',') == '\t');
  CHECK(find_separator("a.csv", "x|y;z\n", ',') == ';');
  CHECK(find_separator("a.csv", "x|y;z\n", '|') == '|');
}

TEST_CASE("CsvReader reads each field that csv_field() writes", "[prepare_examples]") {
  const std::vector<std::string> texts{"",       "a",  " a",  "a ",    "\ta",
                                       "a\t",    "\t", "a,b", "\"a\"", "a\r\nb",
                                       "a\tb;c", "\"", "\r",  "a\r",   "last"};
  std::string line;
  for (const std::string& text : texts) line += (line.empty() ? "x," : ",") + csv_field(text);

  std::vector<std::string_view> fields;
  CsvReader reader(line, "t.csv");
  REQUIRE(reader.next(fields));
  REQUIRE(fields.size() == texts.size() + 1);
  for (size_t i = 0; i < texts.size(); ++i) CHECK(fields[i + 1] == texts[i]);
}

TEST_CASE("CsvReader reads fields, quotes, line ends and byte-order marks", "[prepare_examples]") {
  std::vector<std::string_view> fields;
  const std::string text = "\xEF\xBB\xBF\"a \"\"b\"\"\", c ,\r\n\r\n \t\n\"x,\ny\" ,\"\",3";
  CsvReader reader(text, "t.csv");
  REQUIRE(reader.next(fields));
  CHECK(fields == std::vector<std::string_view>{"a \"b\"", "c", ""});
  CHECK(reader.line() == 1);
  REQUIRE(reader.next(fields));
  CHECK(fields == std::vector<std::string_view>{"x,\ny", "", "3"});
  CHECK(reader.line() == 4);
  CHECK(reader.where(2) == "t.csv:4: column 2");

  // After the last line, the reader is at the end of the file.
  CHECK(!reader.next(fields));
  CHECK(reader.at() == text.size());

  const auto problem = [&](const std::string& bad) {
    return error_of([&] {
      for (CsvReader r(bad, "t.csv"); r.next(fields);) {
      }
    });
  };

  CHECK_THAT(problem("1,2\n3,\"4\n5\n"),
             ContainsSubstring("t.csv:2: column 2") && ContainsSubstring("quote"));
  CHECK_THAT(problem("1,2\n\"3\"4,5\n"),
             ContainsSubstring("t.csv:2: column 1") && ContainsSubstring("closing quote"));
  CHECK_THAT(problem("\xFF\xFE"
                     "1"),
             ContainsSubstring("UTF-16"));
  CHECK_THAT(problem("1,2\r3,4\r"),
             ContainsSubstring("t.csv") && ContainsSubstring("tr '\\r' '\\n'"));
  CHECK(problem("1,2\r").empty());  // the last line's \r needs no line feed
  CHECK_THAT(problem("1," + std::string(70000, 'x')),
             ContainsSubstring("t.csv:1: column 2") && ContainsSubstring("65536 bytes"));
  CHECK_THAT(problem(std::string(1000000, ',')),
             ContainsSubstring("t.csv:1") && ContainsSubstring("1000000"));

  CHECK(csv_number("+1.5e3") == 1500);
  CHECK(csv_number("-.5") == -0.5);
  for (const char* none : {"", "1 2", "0x1", "1,5", "+-1", "one", "1e"}) CHECK(!csv_number(none));
}

TEST_CASE("a table's header, target and task are detected, or set by options",
          "[prepare_examples]") {
  Prepared p;
  // Text labels are sorted, and stored in the manifest.
  auto m = p.csv("wide,high,kind\r\n1,2.5,\"pear, big\"\r\n3,4,apple\r\n5,6,apple\r\n");
  CHECK(m.task == "classification");
  CHECK(m.labels == std::vector<std::string>{"apple", "pear, big"});
  CHECK(p.rows() == Rows{{1, 2.5, 1}, {3, 4, 0}, {5, 6, 0}});
  CHECK(m.train.inputs.type == ArrayType::f64);

  // This table has no header, and its integer targets are classes in numerical order.
  m = p.csv("1,2,10\n3,255,9\n");
  CHECK(m.labels == std::vector<std::string>{"9", "10"});
  CHECK(p.rows() == Rows{{1, 2, 1}, {3, 255, 0}});
  CHECK(m.train.inputs.type == ArrayType::u8);
  CHECK(p.csv("1,2,10\n3,256,9\n").train.inputs.type == ArrayType::f64);
  CHECK(p.csv("1,2,10\n3,-1,9\n").train.inputs.type == ArrayType::f64);

  // A first line is not a header if its texts occur again in later lines, even if an empty cell is
  // in between.
  p.options.table.missing = "drop";
  CHECK(p.csv("1.5,a,x\n2,,y\n3,a,x\n4,b,y\n").train.examples == 3);
  CHECK(p.csv("size,mark,kind\n2,,y\n3,a,x\n4,b,y\n").train.examples == 2);

  // A dropped line adds no category and causes no error, wherever its empty cell is.
  m = p.csv("mark,size,kind\na,1,x\nc,,y\nb,3,y\n\xff,4,\na,5,y\n");
  CHECK(m.train.examples == 3);
  CHECK(m.input_sizes == std::vector<int64_t>{3});  // the categories a and b, and size
  p.options.table.missing = "error";

  // Targets with fractions, or with many different integers, make the task a regression.
  m = p.csv("a,b\n1,0.25\n2,0.5\n");
  CHECK(m.task == "regression");
  CHECK(m.labels.empty());
  CHECK(m.outputs == 1);
  CHECK(p.rows() == Rows{{1, 0.25}, {2, 0.5}});

  std::string many, few;
  for (int i = 0; i < 1250; ++i) {
    many += str(i, ",", i % 26, "\n");
    few += str(i, ",", i % 25, "\n");
  }
  CHECK(p.csv(many).task == "regression");
  CHECK(p.csv(few).task == "classification");
  p.options.task = "classification";
  CHECK(p.csv(many).outputs == 26);
  p.options.task = "regression";
  CHECK(p.csv(few).task == "regression");
  p.options.task = "";

  // A first line of the numbers 0, 1, 2, ..., as pandas writes it, is a header. A first line of
  // numbers is also a header if it has a text above numeric targets.
  CHECK(p.csv("0,1,2,3,4\n5,6,7,8,0\n5,6,7,8,1\n").train.examples == 2);
  CHECK(p.csv("0,1,2,3,5\n5,6,7,8,0\n5,6,7,8,1\n").train.examples == 3);
  CHECK(p.csv("0,1,label\n5,6,0\n5,6,1\n").train.examples == 2);
  CHECK(p.csv("0,1,x\n5,6,y\n5,6,x\n").train.examples == 3);

  // A text target that occurs again shows that the first line is data, even if an id and another
  // text do not occur again.
  CHECK(p.csv("P000,31,9,sick\nP001,30,8,well\nP002,2,3,sick\n").train.examples == 3);
  CHECK(p.csv("id,31,9,state\nP001,30,8,well\nP002,2,3,sick\nP003,2,2,sick\n").train.examples == 3);

  // A number in --target is the number of a column, even if a cell of the first line equals it.
  p.options.table.target = "3";
  m = p.csv("blue,3,7,41\nred,1,8,40\nblue,2,7,30\n");
  CHECK(m.train.examples == 3);
  CHECK(m.labels == std::vector<std::string>{"7", "8"});
  p.options.table.target = "last";

  // The target may be any column.
  const std::string table = "a,2,c\n1,0,3\n4,1,6\n";
  for (const auto& [target, row] : std::map<std::string, std::vector<double>>{{"last", {1, 0, 0}},
                                                                              {"first", {0, 3, 0}},
                                                                              {"a", {0, 3, 0}},
                                                                              {"2", {1, 3, 0}},
                                                                              {"3", {1, 0, 0}},
                                                                              {"1", {0, 3, 0}}}) {
    p.options.table.target = target;
    INFO(target);
    p.csv(table);
    CHECK(p.rows()[0] == row);
  }
  for (const char* target : {"4", "0", "d", ""}) {
    p.options.table.target = target;
    CHECK_THAT(p.csv_problem(table, Exit::usage),
               ContainsSubstring(str("--target ", target)) && ContainsSubstring("1 to 3"));
  }

  // --shape needs as many elements as a line has inputs.
  p.options.table.target = "last";
  p.options.shape = {1, 2, 1};
  CHECK(p.csv(table).input_sizes == std::vector<int64_t>{1, 2, 1});
  p.options.shape = {1, 3};
  CHECK_THAT(p.csv_problem(table, Exit::usage),
             ContainsSubstring("--shape 1x3") && ContainsSubstring("2 numbers"));
  p.options.shape = {};

  // Several files must have the same columns.
  p.write("b.csv", "a,2,c\n7,8,3\n");
  p.csv(table);
  CHECK(p({"a.csv", "b.csv"}).train.examples == 3);
  p.write("b.csv", "a,b,c\n7,8,3\n");
  CHECK_THAT(p.problem({"a.csv", "b.csv"}),
             ContainsSubstring("b.csv:1") && ContainsSubstring("header line"));
}

TEST_CASE("invalid cells of a table are refused with their line and column", "[prepare_examples]") {
  Prepared p;
  const std::string good = "a,b,kind\n1,2,x\n3,4,y\n";
  CHECK(p.csv_problem(good).empty());  // a table without a fault is accepted
  const auto refused = [&](const std::string& line, const std::vector<std::string>& facts) {
    INFO(line);
    const std::string message = p.csv_problem(good + line + "\n");
    for (const auto& fact : facts) CHECK_THAT(message, ContainsSubstring(fact));
  };

  // Test cells with faults, then lines with a wrong number of columns, then targets with faults.
  refused("1,,x", {"a.csv:4: column 2 (b)", "empty"});
  refused("1,2,", {"a.csv:4: column 3 (kind)", "empty"});
  refused("1,two,x", {"a.csv:4: column 2 (b)", "\"two\"", "number"});
  refused(std::string("1,\0,x", 5), {"a.csv:4: column 2 (b)", "\"\\x00\"", "number"});
  refused("1,nan,x", {"a.csv:4: column 2 (b)", "\"nan\"", "finite"});
  refused("inf,2,x", {"a.csv:4: column 1 (a)", "\"inf\"", "finite"});
  refused("1e999,2,x", {"a.csv:4: column 1 (a)", "\"1e999\"", "finite"});
  refused("1e-400,2,x", {"a.csv:4: column 1 (a)", "\"1e-400\"", "float64"});

  refused("1,2", {"a.csv:4", "2 columns"});
  refused("1,2,x,", {"a.csv:4", "4 columns"});

  refused("\n\n1,2,NaN", {"a.csv:6: column 3 (kind)", "\"NaN\"", "finite"});
  refused("1,2,7", {"a.csv:4: column 3 (kind)", "is a number"});
  refused("1,2,\xFF", {"a.csv:4: column 3 (kind)", "UTF-8"});
  refused("1,2," + std::string(1001, 'x'), {"a.csv:4: column 3 (kind)", "1001 bytes"});
  CHECK_THAT(p.csv_problem("1,2\n2,0.5\n3,NA\n"),
             ContainsSubstring("a.csv:3: column 2") && ContainsSubstring("is text"));

  // These faults are in the header line or in the file as a whole.
  CHECK_THAT(p.csv_problem(",a,b\n0,1,x\n1,2,y\n"),
             ContainsSubstring("a.csv:1: column 1") && ContainsSubstring("no name"));
  CHECK_THAT(p.csv_problem("a|b\n1|2\n"), ContainsSubstring("a.csv") &&
                                              ContainsSubstring("one column") &&
                                              ContainsSubstring("--separator"));
  CHECK_THAT(p.csv_problem(""), ContainsSubstring("a.csv") && ContainsSubstring("no lines"));
  CHECK_THAT(p.csv_problem("a,b\n"),
             ContainsSubstring("a.csv") && ContainsSubstring("no examples"));
  CHECK_THAT(p.csv_problem("1,x\n2,x\n"),
             ContainsSubstring("a.csv") && ContainsSubstring("target is x"));

  // Targets that do not fit the task are refused.
  p.options.task = "regression";
  CHECK_THAT(p.csv_problem(good), ContainsSubstring("a.csv:2: column 3 (kind)") &&
                                      ContainsSubstring("\"x\"") && ContainsSubstring("number"));
  p.options.task = "classification";
  CHECK_THAT(p.csv_problem("1,2\n2,0.5\n"),
             ContainsSubstring("a.csv:2: column 2") && ContainsSubstring("0.5"));
  p.options.task = "";
  std::string labels;
  for (int i = 0; i < 65537; ++i) labels += str("1,l", i, "\n");
  CHECK_THAT(p.csv_problem(labels),
             ContainsSubstring("65536") && ContainsSubstring("number of classes"));

  // Files that are missing or have another format are refused.
  CHECK_THAT(p.problem({"nowhere.csv"}), ContainsSubstring((p.f / "nowhere.csv").string()));
  p.write("a.gz",
          "\x1F\x8B\x08"
          "abc");
  CHECK_THAT(p.problem({"a.gz"}), ContainsSubstring("a.gz") && ContainsSubstring("gunzip"));
  p.write("a.npz",
          "PK\x03\x04"
          "abc");
  CHECK_THAT(p.problem({"a.npz"}), ContainsSubstring("a.npz") && ContainsSubstring("ZIP"));
}

std::string idx(int type, const std::vector<uint32_t>& sizes, const std::string& elements) {
  std::string text{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const uint32_t n : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(n >> shift & 255);
  return text + elements;
}
std::string npy(const std::string& type, const std::string& shape, const std::string& elements) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + "}";
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header +
         elements;
}

TEST_CASE("IDX files and arrays become the same examples", "[prepare_examples]") {
  Prepared p;
  const std::string pixels("\0\1\2\3\4\5\6\7\x8\x9\xA\xFF", 12), labels("\3\5\3", 3);
  p.write("images", idx(8, {3, 2, 2}, pixels));
  p.write("labels", idx(8, {3}, labels));
  auto m = p({"images", "labels"});
  const Rows wanted{{0, 1, 2, 3, 0}, {4, 5, 6, 7, 1}, {8, 9, 10, 255, 0}};
  CHECK(m.input_sizes == std::vector<int64_t>{1, 2, 2});
  CHECK(m.labels == std::vector<std::string>{"3", "5"});
  CHECK(p.rows() == wanted);
  p.write("x.npy", npy("|u1", "(3, 1, 2, 2)", pixels));
  p.write("y.npy", npy("|u1", "(3,)", labels));
  CHECK(p({"x.npy", "y.npy"}).train.inputs.type == ArrayType::u8);
  CHECK(p.rows() == wanted);
  const auto bytes = [](const std::string& s) { return std::as_bytes(std::span(s)); };
  write_safetensors(p.f / "both.safetensors", {{"inputs", "U8", {3, 1, 2, 2}, bytes(pixels)},
                                               {"targets", "U8", {3}, bytes(labels)}});
  p({"both.safetensors"});
  CHECK(p.rows() == wanted);
  // The big-endian numbers are 1.0 and -2.0 in float32, and 258 and -1 in int16.
  p.write("f", idx(0x0D, {2, 1}, std::string("\x3F\x80\0\0\xC0\0\0\0", 8)));
  p.write("t", idx(0x0B, {2}, std::string("\1\2\xFF\xFF", 4)));
  p.options.task = "regression";
  m = p({"f", "t"});
  CHECK(p.rows() == Rows{{1, 258}, {-2, -1}});
  CHECK(m.train.inputs.type == ArrayType::f32);
  CHECK(m.train.targets.type == ArrayType::i16);
  p.options.task = "";
  // A target may consist of several numbers.
  p.write("y2.npy", npy("|i1", "(3, 2)", "abcdef"));
  m = p({"x.npy", "y2.npy"});
  CHECK(m.task == "regression");
  CHECK(m.outputs == 2);
  CHECK(p.rows()[2] == std::vector<double>{8, 9, 10, 255, 'e', 'f'});

  CHECK_THAT(p.problem({"labels", "images"}), ContainsSubstring("labels") &&
                                                  ContainsSubstring("images") &&
                                                  ContainsSubstring("inputs first"));
  CHECK_THAT(p.problem({"x.npy"}), ContainsSubstring("x.npy") && ContainsSubstring("one array"));
  p.write("a.csv", "1,2\n");
  CHECK_THAT(p.problem({"x.npy", "a.csv"}),
             ContainsSubstring("x.npy") && ContainsSubstring("not a pair"));
  p.write("short", idx(8, {4}, labels));
  CHECK_THAT(p.problem({"images", "short"}), ContainsSubstring("short") &&
                                                 ContainsSubstring("4 bytes") &&
                                                 ContainsSubstring("has 3"));
  p.write("huge", idx(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, labels));
  CHECK_THAT(p.problem({"huge", "labels"}),
             ContainsSubstring("huge") && ContainsSubstring(std::to_string(int64_t{1} << 62)));
  p.write("y3.npy", npy("|u1", "(2,)", "ab"));
  CHECK_THAT(p.problem({"x.npy", "y3.npy"}),
             ContainsSubstring("3 examples") && ContainsSubstring("y3.npy 2"));
  p.write("nan.npy", npy("<f4", "(3, 1)", std::string("\0\0\0\0\0\0\xC0\x7F\0\0\0\0", 12)));
  CHECK_THAT(p.problem({"nan.npy", "y.npy"}),
             ContainsSubstring("nan.npy: example 1 ") && ContainsSubstring("finite"));
  p.write("big.npy", npy("<i8", "(1, 1)", std::string("\1\0\0\0\0\0\x20\0", 8)));
  p.write("y1.npy", npy("|u1", "(1,)", "a"));
  CHECK_THAT(p.problem({"big.npy", "y1.npy"}),
             ContainsSubstring("big.npy: example 0 ") && ContainsSubstring("2^53"));
  p.options.table.target = "first";
  CHECK_THAT(p.problem({"x.npy", "y.npy"}, Exit::usage), ContainsSubstring("--target first"));
}

TEST_CASE("the validation split is a share of each class, or comes from separate files",
          "[prepare_examples]") {
  Prepared p;
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += str(i, ".5,", i % 10 == 0 ? "rare" : i % 2 == 0 ? "even" : "odd", "\n");
  p.options.val_share = 0.2;
  const auto m = p.csv(text);
  CHECK(m.train.examples == 80);
  CHECK(m.val.examples == 20);

  // A fifth of each class is for validation, and no example is in both parts.
  std::map<double, int> of_class;
  std::set<double> all;
  for (const auto& row : p.rows("val")) {
    ++of_class[row[1]];
    all.insert(row[0]);
  }
  CHECK(of_class == std::map<double, int>{{0, 8}, {1, 10}, {2, 2}});
  const auto first = p.rows("val");
  for (const auto& row : p.rows("train")) all.insert(row[0]);
  CHECK(all.size() == 100);

  p.csv(text);
  CHECK(p.rows("val") == first);  // the split is the same each time
  CHECK(first.front()[0] < 50);   // the split is not the tail of the file

  // If a class has only one example, that example is for training.
  p.options.val_share = 0.9;
  p.csv("1,a\n2,b\n3,b\n4,b\n");
  REQUIRE(p.rows().size() == 2);
  CHECK(p.rows()[0] == std::vector<double>{1, 0});

  // Validation examples can come from a separate file.
  p.write("val.csv", "200,odd\n201.25,rare\n");
  p.options.val_inputs = {(p.f / "val.csv").string()};
  CHECK(p.csv(text).train.examples == 100);
  CHECK(p.rows("val") == Rows{{200, 1}, {201.25, 2}});

  // A validation file is refused if it has a class that the training file does not have, or another
  // number of columns.
  p.write("val.csv", "200,odd\n201.25,new\n");
  CHECK_THAT(p.csv_problem(text), ContainsSubstring("val.csv:2: column 2") &&
                                      ContainsSubstring("\"new\"") && ContainsSubstring("class"));
  p.write("val.csv", "1,200,odd\n");
  CHECK_THAT(p.csv_problem(text), ContainsSubstring("val.csv:1") && ContainsSubstring("3 columns"));
}

/// Runs prepare_examples() in another process, which exits with code 137 when it reaches the fault
/// point `point` for the n-th time. Returns the exit code of the process.
int prepare_killed(const ExampleOptions& options, const std::string& point, int n) {
  const pid_t pid = fork();
  if (pid == 0) {
    static std::string at;
    static int left;
    at = point;
    left = n;
    fault_hook = [](const char* name) {
      if (name == at && --left == 0) _exit(137);
    };
    try {
      prepare_examples(options);
    } catch (const Error& e) {
      _exit(static_cast<int>(e.code()));
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

TEST_CASE("the same call completes an interrupted preparation, and no file of the user is lost",
          "[prepare_examples]") {
  const TempFolder f;
  std::string text;
  for (int i = 0; i < 50; ++i) text += str(i, ",", i % 3, "\n");
  write_file(f / "a.csv", text);
  ExampleOptions options{.inputs = {(f / "a.csv").string()}, .out = f / "whole"};
  prepare_examples(options);
  const std::set<std::string> files{"manifest.json", "train_inputs.npy", "train_targets.npy",
                                    "val_inputs.npy", "val_targets.npy"};
  CHECK(names(f / "whole") == files);
  CHECK(prepare_killed(options, "none", 1) ==
        static_cast<int>(Exit::usage));  // the folder has data

  int n = 0;
  for (const auto& [point, times] :
       std::vector<std::pair<std::string, int>>{{"prepare: shards written", 1},
                                                {"prepare: manifest written", 1},
                                                {"prepare: shard renamed", 1},
                                                {"prepare: shard renamed", 4}}) {
    INFO(point << " " << times);
    options.out = f / ("out" + std::to_string(n++));
    fs::create_directories(options.out);
    write_file(options.out / "notes.txt", "mine");

    REQUIRE(prepare_killed(options, point, times) == 137);
    CHECK(!fs::exists(options.out / "manifest.json"));
    REQUIRE(prepare_killed(options, point, times) == 137);  // killed a second time

    prepare_examples(options);
    CHECK(slurp(options.out / "notes.txt") == "mine");
    fs::remove(options.out / "notes.txt");
    CHECK(names(options.out) == files);
    for (const auto& name : files) CHECK(slurp(options.out / name) == slurp(f / "whole" / name));
  }

  // A user's file that has the name of an output is not overwritten.
  options.out = f / "theirs";
  REQUIRE(prepare_killed(options, "prepare: shard renamed", 2) == 137);
  write_file(options.out / "train_inputs.npy", "mine");
  CHECK_THAT(error_of([&] { prepare_examples(options); }),
             ContainsSubstring((options.out / "train_inputs.npy").string()) &&
                 ContainsSubstring("interrupted"));
  CHECK(slurp(options.out / "train_inputs.npy") == "mine");

  // A folder that holds data is refused, unless an interrupted preparation wrote the data.
  fs::create_directories(f / "raw");
  write_file(f / "raw/val_inputs.npy", "mine");
  options.out = f / "raw";
  CHECK_THAT(error_of([&] { prepare_examples(options); }),
             ContainsSubstring(options.out.string()) && ContainsSubstring("holds data"));
  CHECK(names(f / "raw") == std::set<std::string>{"val_inputs.npy"});
}

TEST_CASE("reading a table checks for a stop every few megabytes, and a stop leaves no files",
          "[prepare_examples]") {
  const TempFolder f;
  std::string text;
  for (int i = 0; i < 600000; ++i) text += "0.125,1000000,7.5," + std::to_string(i % 3) + "\n";
  write_file(f / "a.csv", text);
  int64_t asked = 0, last = 0;
  const ExampleOptions options{.inputs = {(f / "a.csv").string()},
                               .out = f / "a/b/out",
                               .stop = [&] { return ++asked == last; }};
  prepare_examples(options);
  const int64_t all = asked;
  CHECK(all >= 2 * static_cast<int64_t>(text.size() / (size_t{4} << 20)));
  fs::remove_all(f / "a");
  for (const int64_t n : {int64_t{1}, all / 2 + 1, all}) {
    asked = 0;
    last = n;
    CHECK_THAT(error_of([&] { prepare_examples(options); }),
               ContainsSubstring(options.out.string()) && ContainsSubstring("nothing"));
    CHECK(!fs::exists(f / "a"));
  }
}

TEST_CASE("an option, the file name or the first line determines the separator",
          "[prepare_examples]") {
  Prepared p;
  const auto same = [&](const std::string& name, const std::string& text) {
    INFO(name << ": " << text);
    p.write(name, text);
    const ExampleManifest m = p({name});
    CHECK(p.rows() == Rows{{1, 2.5, 0}, {3, 4, 1}});
    return m.table->separator;
  };
  CHECK(same("a.csv", "a,b,kind\n1,2.5,x\n3,4,y\n") == ',');
  CHECK(same("a.csv", "a;b;kind\n1;2.5;x\n3;4;y\n") == ';');
  CHECK(same("a.csv", "\"a,1\";b;kind\n1;2.5;x\n3;4;y\n") == ';');
  CHECK(same("a.csv", "a\tb\tkind\n1\t2.5\tx\n3\t 4 \ty\n") == '\t');
  CHECK(same("a.tsv", "a,b\tc;d\tkind\n1\t2.5\tx\n3\t4\ty\n") == '\t');
  p.options.table.separator = '|';
  CHECK(same("a.csv", "a,b|c;d|kind\n1|2.5|x\n3|4|y\n") == '|');
  p.options.table.separator = 0;
  CHECK(is_example_file(p.f / "a.tsv"));

  // If the separator is a tab, tabs are not white space, so two adjacent tabs enclose an empty
  // cell.
  p.write("a.tsv", "a\tb\tkind\n1\t\tx\n");
  CHECK_THAT(p.problem({"a.tsv"}),
             ContainsSubstring("a.tsv:2: column 2 (b)") && ContainsSubstring("empty"));
  p.write("a.tsv", "a\tb\tkind\n1\t2\tx\n\t\t\n");
  CHECK_THAT(p.problem({"a.tsv"}),
             ContainsSubstring("a.tsv:3: column 1 (a)") && ContainsSubstring("empty"));
  CHECK_THAT(p.csv_problem("a;b;kind\n1;2,5;x\n"), ContainsSubstring("column 2 (b)") &&
                                                       ContainsSubstring("\"2,5\"") &&
                                                       ContainsSubstring("commas"));
  CHECK_THAT(p.csv_problem("a;b;kind\n1;2;x\n1;2,5;y\n"),
             ContainsSubstring("a.csv:3: column 2 (b)") && ContainsSubstring("\"2,5\"") &&
                 ContainsSubstring("decimal point"));
}

TEST_CASE("text columns become one input per category", "[prepare_examples]") {
  Prepared p;
  const std::string table = "color,size,kind\nred,\"1\",x\n\"blue\",2,y\nred,3,x\n";
  ExampleManifest m = p.csv(table);
  CHECK(m.input_sizes == std::vector<int64_t>{3});
  CHECK(p.rows() == Rows{{0, 1, 1, 0}, {1, 0, 2, 1}, {0, 1, 3, 0}});
  REQUIRE(m.table);
  CHECK(m.table->columns[0].values == std::vector<std::string>{"blue", "red"});
  CHECK(!m.table->columns[1].is_text);  // numbers in quotes are numbers
  CHECK(m.table->columns[2].role == ColumnRole::target);
  CHECK(m.table->columns[2].name == "kind");

  // Numbers can be categories, and columns can be excluded from the inputs.
  p.options.table.categories = {"size"};
  m = p.csv(table);
  CHECK(p.rows()[1] == std::vector<double>{1, 0, 0, 1, 0, 1});
  p.options.table.categories.clear();
  p.options.table.drop = {"1"};
  p.csv(table);
  CHECK(p.rows() == Rows{{1, 0}, {2, 1}, {3, 0}});
  p.options.table.drop = {"size"};
  p.options.table.id = "color";
  CHECK_THAT(p.csv_problem(table, Exit::usage),
             ContainsSubstring("a.csv") && ContainsSubstring("no columns"));
  p.options.table.drop = {"kind"};
  CHECK_THAT(p.csv_problem(table, Exit::usage),
             ContainsSubstring("--drop kind") && ContainsSubstring("the target"));
  p.options.table.drop = {"shade"};
  CHECK_THAT(p.csv_problem(table, Exit::usage), ContainsSubstring("--drop shade"));
  p.options.table.drop.clear();
  m = p.csv(table);
  CHECK(m.table->columns[0].role == ColumnRole::id);
  CHECK(m.input_sizes == std::vector<int64_t>{1});
  p.options.table.id.clear();

  // A first line whose texts occur again in later lines is data, not a header.
  m = p.csv("red,1,x\nblue,2,y\nred,3,x\n");
  CHECK(m.train.examples == 3);
  CHECK(!m.table->has_header);
  CHECK(p.csv("color,1,kind\nblue,2,y\nred,3,x\n").table->has_header);

  CHECK_THAT(p.csv_problem("a,b\nred,x\n5,y\n"), ContainsSubstring("a.csv:3: column 1 (a)") &&
                                                     ContainsSubstring("\"5\"") &&
                                                     ContainsSubstring("\"red\""));
  // A column of inputs or targets is refused if all its values are numbers with commas. If the
  // column also has another text, its values are categories.
  CHECK_THAT(p.csv_problem("a;kind\n1,5;x\n2,5;y\n"), ContainsSubstring("a.csv: column 1 (a)") &&
                                                          ContainsSubstring("\"1,5\"") &&
                                                          ContainsSubstring("commas"));
  CHECK_THAT(p.csv_problem("a;b\n1;1,5\n2;1,000\n"),
             ContainsSubstring("comma") && ContainsSubstring("\"1,000\""));
  CHECK(p.csv("a;kind\n1,5;x\nlow;y\n").input_sizes == std::vector<int64_t>{2});
  CHECK_THAT(p.csv_problem("a,a,kind\n1,2,x\n1,2,y\n"), ContainsSubstring("a.csv:1: column 2") &&
                                                            ContainsSubstring("\"a\"") &&
                                                            ContainsSubstring("--drop 2"));
  CHECK_THAT(p.csv_problem("a,kind\n\xFF,x\nz,y\n"),
             ContainsSubstring("a.csv:2: column 1 (a)") && ContainsSubstring("UTF-8"));
  std::string many = "a,kind\n";
  for (int i = 0; i < 1001; ++i) many += str("t", i, ",", i % 2, "\n");
  CHECK_THAT(p.csv_problem(many), ContainsSubstring("column 1 (a)") &&
                                      ContainsSubstring("1000 different") &&
                                      ContainsSubstring("--id 1"));
  p.options.table.drop = {"2"};
  CHECK(p.csv("a,a,kind\n1,2,x\n1,2,y\n").train.examples == 2);
  p.options.table.drop.clear();

  // A validation file is encoded with the categories of the training file.
  p.write("val.csv", "color,size,kind\nblue,1,x\n");
  p.options.val_inputs = {(p.f / "val.csv").string()};
  p.csv(table);
  CHECK(p.rows("val") == Rows{{1, 0, 1, 0}});
  p.write("val.csv", "color,size,kind\ngreen,1,x\n");
  CHECK_THAT(p.csv_problem(table),
             ContainsSubstring("val.csv:2: column 1 (color)") && ContainsSubstring("\"green\""));
}

TEST_CASE(
    "an empty cell is an error, is filled from the training split, or causes its line to be "
    "dropped",
    "[prepare_examples]") {
  Prepared p;
  const std::string table = "a,b,kind\n,1,x\n1,,x\n2,red,y\n6,blue,y\n";
  CHECK_THAT(p.csv_problem(table), ContainsSubstring("--missing mean, median or drop"));
  p.options.table.missing = "drop";
  ExampleManifest m = p.csv("a,b,kind\n,1,x\n1,2,x\n2,,y\n6,4,y\n3,4,\n");
  CHECK(p.rows() == Rows{{1, 2, 0}, {6, 4, 1}});

  p.options.table.categories = {"b"};
  p.options.table.missing = "mean";
  m = p.csv(table);
  CHECK(m.table->columns[0].fill == 3);
  CHECK(m.table->columns[1].values == std::vector<std::string>{"", "1", "blue", "red"});
  CHECK(p.rows()[0] == std::vector<double>{3, 0, 1, 0, 0, 0});
  CHECK(p.rows()[1] == std::vector<double>{1, 1, 0, 0, 0, 0});
  p.options.table.missing = "median";
  CHECK(p.csv(table).table->columns[0].fill == 2);
  CHECK(p.csv("a,b,kind\n,1,x\n1,,x\n2,red,y\n6,blue,y\n7,z,y\n").table->columns[0].fill == 4);
  p.options.table.categories.clear();

  // The target is never filled. A column without any number is refused.
  CHECK_THAT(p.csv_problem("a,b,kind\n1,1,x\n2,2,\n"),
             ContainsSubstring("a.csv:3: column 3 (kind)") && ContainsSubstring("empty"));
  CHECK_THAT(p.csv_problem("a,b,kind\n,1,x\n,2,y\n"), ContainsSubstring("a.csv: column 1 (a)") &&
                                                          ContainsSubstring("empty") &&
                                                          ContainsSubstring("--drop 1"));

  // The number that fills empty cells is computed from the training lines only.
  std::string long_table = "a,kind\n,0\n,1\n";
  for (int i = 0; i < 40; ++i) long_table += str(i * i, ",", i % 2, "\n");
  p.options.val_share = 0.5;
  p.options.table.missing = "mean";
  m = p.csv(long_table);
  double sum = 0, count = 0;
  for (const auto& row : p.rows()) {
    if (row[0] == m.table->columns[0].fill) continue;
    sum += row[0];
    ++count;
  }
  CHECK(count < 40);
  CHECK(*m.table->columns[0].fill == Approx(sum / count));
  // A validation file is filled with the same number.
  p.options.val_share = 0.1;
  p.write("val.csv", "a,kind\n,0\n");
  p.options.val_inputs = {(p.f / "val.csv").string()};
  m = p.csv(long_table);
  CHECK(p.rows("val") == Rows{{*m.table->columns[0].fill, 0}});
}

TEST_CASE("a manifest records how a table was read, and older manifests need no such record",
          "[prepare_examples]") {
  Prepared p;
  p.options.table.missing = "mean";
  p.options.table.id = "name";
  const ExampleManifest m = p.csv("name;color;a;price\nu;red;;1.5\nv;blue;2;2.5\nw;red;3;0.25\n");
  REQUIRE(m.table);
  CHECK(m.table->separator == ';');
  CHECK(m.table->has_header);
  CHECK(m.table->missing == "mean");
  CHECK(m.table->columns.size() == 4);
  CHECK(m.table->columns[0].role == ColumnRole::id);
  CHECK(m.table->columns[1].values == std::vector<std::string>{"blue", "red"});
  CHECK(m.table->columns[2].fill == 2.5);
  CHECK(m.encoding().targets.mean[0] == Approx((1.5 + 2.5 + 0.25) / 3));

  const Finished shown = lathe_in(p.f, {"inspect", "out"});
  CHECK_THAT(shown.out, ContainsSubstring("column 2 color  input, 2 categories") &&
                            ContainsSubstring("column 3 a  input, empty cells become 2.5"));

  const auto changed = [&](const std::function<void(ExampleManifest&)>& change) {
    ExampleManifest other = m;
    change(other);
    write_example_manifest(p.options.out, other);
    return error_of([&] { read_example_manifest(p.options.out); });
  };
  CHECK(changed([](auto&) {}).empty());
  CHECK(changed([](auto& c) { c.table.reset(); }).empty());  // an older manifest
  CHECK_THAT(changed([](auto& c) {
               c.table->columns.pop_back();
               c.table->columns.pop_back();
             }),
             ContainsSubstring("2 inputs") && ContainsSubstring("\"sizes\" is 3"));
  CHECK_THAT(changed([](auto& c) { c.table->missing = "x"; }), ContainsSubstring("\"missing\""));
  CHECK_THAT(changed([](auto& c) { c.table->columns[1].values = {"a", "a"}; }),
             ContainsSubstring("\"values\"") && ContainsSubstring("different"));
}

TEST_CASE("channels-last images are stored with channels first", "[prepare_examples]") {
  Prepared p;
  // The array has two images of 2 x 3 pixels with 3 channels, and a different number in each
  // element.
  std::string pixels;
  for (char x = 0; x < 36; ++x) pixels += x;
  p.write("x.npy", npy("|u1", "(2, 2, 3, 3)", pixels));
  p.write("y.npy", npy("|u1", "(2,)", std::string("\0\1", 2)));
  ExampleManifest m = p({"x.npy", "y.npy"});
  CHECK(m.input_sizes == std::vector<int64_t>{2, 3, 3});
  CHECK(!m.channels_last);
  p.options.channels_last = true;
  m = p({"x.npy", "y.npy"});
  CHECK(m.input_sizes == std::vector<int64_t>{3, 2, 3});
  CHECK(m.channels_last);
  CHECK(p.rows()[0] ==
        std::vector<double>{0, 3, 6, 9, 12, 15, 1, 4, 7, 10, 13, 16, 2, 5, 8, 11, 14, 17, 0});
  CHECK(m.inputs.mean.size() == 3);
  CHECK(m.inputs.mean[0] == Approx(7.5 + 9));  // the mean over both images
  p.write("flat.npy", npy("|u1", "(2, 18)", pixels));
  CHECK_THAT(p.problem({"flat.npy", "y.npy"}, Exit::usage), ContainsSubstring("--layout hwc") &&
                                                                ContainsSubstring("flat.npy") &&
                                                                ContainsSubstring("--shape H,W,C"));
  p.options.shape = {2, 3, 3};
  CHECK(p({"flat.npy", "y.npy"}).input_sizes == std::vector<int64_t>{3, 2, 3});

  // A warning is printed if channels seem to be last.
  const auto warned = [&](const std::string& file, const std::vector<std::string>& flags) {
    std::vector<std::string> words{"prepare", file, "y.npy", "--out", "cli", "--val", "0"};
    words.insert(words.end(), flags.begin(), flags.end());
    fs::remove_all(p.f / "cli");
    const Finished done = lathe_in(p.f, words);
    CHECK(done.code == 0);
    return done.err.find("--layout hwc") != std::string::npos;
  };
  p.write("first.npy", npy("|u1", "(2, 3, 2, 3)", pixels));
  CHECK(warned("x.npy", {}));
  CHECK(!warned("x.npy", {"--layout", "hwc"}));
  CHECK(!warned("first.npy", {}));
}

}  // namespace
