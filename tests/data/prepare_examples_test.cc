// Preparing example sets: what CSV, IDX and arrays mean, what is refused and where, and that it is
// done whole or not.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "data/example_manifest.h"
#include "data/prepare/csv.h"
#include "data/prepare/prepare_examples.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Every example of a split as numbers, its target last.
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

/// A folder with files, and what preparing them gives.
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
  /// The error's message, whose code must be this one, with nothing left behind.
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

TEST_CASE("fields, quotes, line ends and marks of CSV", "[prepare_examples]") {
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
  CHECK(!reader.next(fields));
  CHECK(reader.at() == text.size());
  const auto problem = [&](const std::string& bad) {
    return error_of([&] {
      for (CsvReader r(bad, "t.csv"); r.next(fields);) {
      }
    });
  };
  CHECK_THAT(problem("1,2\n3,\"4\n5\n"),
             ContainsSubstring("t.csv:2: column 2 begins a quote that never ends"));
  CHECK_THAT(problem("1,2\n\"3\"4,5\n"),
             ContainsSubstring("t.csv:2: column 1 has something behind its closing quote"));
  CHECK_THAT(problem("\xFF\xFE"
                     "1"),
             ContainsSubstring("UTF-16"));
  CHECK_THAT(problem("1," + std::string(70000, 'x')),
             ContainsSubstring("t.csv:1: column 2 has more than 65536 bytes"));
  CHECK_THAT(problem(std::string(1000000, ',')), ContainsSubstring("more than 1000000 columns"));
  CHECK(csv_number("+1.5e3") == 1500);
  CHECK(csv_number("-.5") == -0.5);
  for (const char* none : {"", "1 2", "0x1", "1,5", "+-1", "one", "1e"}) CHECK(!csv_number(none));
}

TEST_CASE("a table's header, target and task are as it looks, or as they are said",
          "[prepare_examples]") {
  Prepared p;
  // Text labels: sorted, and kept.
  auto m = p.csv("wide,high,kind\r\n1,2.5,\"pear, big\"\r\n3,4,apple\r\n5,6,apple\r\n");
  CHECK(m.task == "classification");
  CHECK(m.labels == std::vector<std::string>{"apple", "pear, big"});
  CHECK(p.rows() == Rows{{1, 2.5, 1}, {3, 4, 0}, {5, 6, 0}});
  CHECK(m.train.inputs.type == ArrayType::f64);
  // No header; whole numbers are classes, in the order of numbers.
  m = p.csv("1,2,10\n3,255,9\n");
  CHECK(m.labels == std::vector<std::string>{"9", "10"});
  CHECK(p.rows() == Rows{{1, 2, 1}, {3, 255, 0}});
  CHECK(m.train.inputs.type == ArrayType::u8);
  CHECK(p.csv("1,2,10\n3,256,9\n").train.inputs.type == ArrayType::f64);
  CHECK(p.csv("1,2,10\n3,-1,9\n").train.inputs.type == ArrayType::f64);
  // Numbers with fractions, or many whole ones.
  m = p.csv("a,b\n1,0.25\n2,0.5\n");
  CHECK(m.task == "regression");
  CHECK(m.labels.empty());
  CHECK(m.outputs == 1);
  CHECK(p.rows() == Rows{{1, 0.25}, {2, 0.5}});
  std::string many, few;
  for (int i = 0; i < 1250; ++i)
    many += str(i, ",", i % 26, "\n"), few += str(i, ",", i % 25, "\n");
  CHECK(p.csv(many).task == "regression");
  CHECK(p.csv(few).task == "classification");
  p.options.task = "classification";
  CHECK(p.csv(many).outputs == 26);
  p.options.task = "regression";
  CHECK(p.csv(few).task == "regression");
  p.options.task = "";
  // Column names that are numbers, as pandas counts them; a name for the target alone.
  CHECK(p.csv("0,1,2,3,4\n5,6,7,8,0\n5,6,7,8,1\n").train.examples == 2);
  CHECK(p.csv("0,1,2,3,5\n5,6,7,8,0\n5,6,7,8,1\n").train.examples == 3);
  CHECK(p.csv("0,1,label\n5,6,0\n5,6,1\n").train.examples == 2);
  CHECK(p.csv("0,1,x\n5,6,y\n5,6,x\n").train.examples == 3);
  // The target's place.
  const std::string table = "a,2,c\n1,0,3\n4,1,6\n";
  for (const auto& [target, row] : std::map<std::string, std::vector<double>>{{"last", {1, 0, 0}},
                                                                              {"first", {0, 3, 0}},
                                                                              {"a", {0, 3, 0}},
                                                                              {"2", {1, 3, 0}},
                                                                              {"3", {1, 0, 0}},
                                                                              {"1", {0, 3, 0}}}) {
    p.options.target = target;
    INFO(target);
    p.csv(table);
    CHECK(p.rows()[0] == row);
  }
  for (const char* target : {"4", "0", "d", ""}) {
    p.options.target = target;
    CHECK_THAT(p.csv_problem(table, Exit::usage), ContainsSubstring("is no column of"));
  }
  p.options.target = "last";
  p.options.shape = {1, 2, 1};
  CHECK(p.csv(table).input_sizes == std::vector<int64_t>{1, 2, 1});
  p.options.shape = {1, 3};
  CHECK_THAT(p.csv_problem(table, Exit::usage), ContainsSubstring("--shape 1x3 does not fit"));
  p.options.shape = {};
  // Several files with the same columns.
  p.write("b.csv", "a,2,c\n7,8,3\n");
  p.csv(table);
  CHECK(p({"a.csv", "b.csv"}).train.examples == 3);
  p.write("b.csv", "a,b,c\n7,8,3\n");
  CHECK_THAT(p.problem({"a.csv", "b.csv"}),
             ContainsSubstring("b.csv:1: another header line than that of"));
}

TEST_CASE("what a table must not hold is refused with its line and column", "[prepare_examples]") {
  Prepared p;
  const std::string good = "a,b,kind\n1,2,x\n3,4,y\n";
  CHECK(p.csv_problem(good).empty());  // the control
  const auto refused = [&](const std::string& line, const std::string& message) {
    INFO(line);
    CHECK_THAT(p.csv_problem(good + line + "\n"), ContainsSubstring(message));
  };
  refused("1,,x", "a.csv:4: column 2 (b) is empty");
  refused("1,2,", "a.csv:4: column 3 (kind) is empty");
  refused("1,two,x", "a.csv:4: column 2 (b) is \"two\", which is no number");
  refused("1,nan,x", "a.csv:4: column 2 (b) is \"nan\", which is not finite");
  refused("inf,2,x", "a.csv:4: column 1 (a) is \"inf\", which is not finite");
  refused("1e999,2,x", "a.csv:4: column 1 (a) is \"1e999\", which is not finite");
  refused("1,2", "a.csv:4 has 2 columns and the first line of");
  refused("1,2,x,", "a.csv:4 has 4 columns");
  refused("\n\n1,2,NaN", "a.csv:6: column 3 (kind) is \"NaN\", which is not finite");
  refused("1,2,7", "a.csv:4: column 3 (kind) is a number and was text before");
  refused("1,2,\xFF", "a.csv:4: column 3 (kind) is not UTF-8");
  refused("1,2," + std::string(1001, 'x'), "too long for a class");
  CHECK_THAT(p.csv_problem("1,2\n2,0.5\n3,NA\n"),
             ContainsSubstring("a.csv:3: column 2 is text and was a number before"));
  CHECK_THAT(p.csv_problem(",a,b\n0,1,x\n1,2,y\n"), ContainsSubstring("column 1 has no name"));
  CHECK_THAT(p.csv_problem("a;b\n1;2\n"), ContainsSubstring("must be separated by commas"));
  CHECK_THAT(p.csv_problem(""), ContainsSubstring("has no lines"));
  CHECK_THAT(p.csv_problem("a,b\n"), ContainsSubstring("holds no examples"));
  CHECK_THAT(p.csv_problem("1,x\n2,x\n"), ContainsSubstring("there must be two classes or more"));
  p.options.task = "regression";
  CHECK_THAT(p.csv_problem(good),
             ContainsSubstring("a.csv:2: column 3 (kind) is \"x\", which is no number"));
  p.options.task = "classification";
  CHECK_THAT(p.csv_problem("1,2\n2,0.5\n"),
             ContainsSubstring("a.csv:2: column 2 is 0.5; a class is text or a whole number"));
  p.options.task = "";
  std::string labels;
  for (int i = 0; i < 65537; ++i) labels += str("1,l", i, "\n");
  CHECK_THAT(p.csv_problem(labels), ContainsSubstring("more than 65536 different targets"));
  CHECK_THAT(p.problem({"nowhere.csv"}), ContainsSubstring("there is no file"));
  p.write("a.gz",
          "\x1F\x8B\x08"
          "abc");
  CHECK_THAT(p.problem({"a.gz"}), ContainsSubstring("unpack it with gunzip first"));
  p.write("a.npz",
          "PK\x03\x04"
          "abc");
  CHECK_THAT(p.problem({"a.npz"}), ContainsSubstring("is a ZIP archive"));
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
  // Big-endian float32: 1.0 and -2.0; int16: 258 and -1.
  p.write("f", idx(0x0D, {2, 1}, std::string("\x3F\x80\0\0\xC0\0\0\0", 8)));
  p.write("t", idx(0x0B, {2}, std::string("\1\2\xFF\xFF", 4)));
  p.options.task = "regression";
  m = p({"f", "t"});
  CHECK(p.rows() == Rows{{1, 258}, {-2, -1}});
  CHECK(m.train.inputs.type == ArrayType::f32);
  CHECK(m.train.targets.type == ArrayType::i16);
  p.options.task = "";
  // Targets of several numbers.
  p.write("y2.npy", npy("|i1", "(3, 2)", "abcdef"));
  m = p({"x.npy", "y2.npy"});
  CHECK(m.task == "regression");
  CHECK(m.outputs == 2);
  CHECK(p.rows()[2] == std::vector<double>{8, 9, 10, 255, 'e', 'f'});

  CHECK_THAT(p.problem({"labels", "images"}), ContainsSubstring("give the inputs first"));
  CHECK_THAT(p.problem({"x.npy"}), ContainsSubstring("is one array"));
  p.write("a.csv", "1,2\n");
  CHECK_THAT(p.problem({"x.npy", "a.csv"}), ContainsSubstring("are no pair"));
  p.write("short", idx(8, {4}, labels));
  CHECK_THAT(p.problem({"images", "short"}),
             ContainsSubstring("claims 4 bytes of elements and the file has 3"));
  p.write("huge", idx(8, {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, labels));
  CHECK_THAT(p.problem({"huge", "labels"}), ContainsSubstring("claims"));
  p.write("y3.npy", npy("|u1", "(2,)", "ab"));
  CHECK_THAT(p.problem({"x.npy", "y3.npy"}), ContainsSubstring("holds 3 examples and"));
  p.write("nan.npy", npy("<f4", "(3, 1)", std::string("\0\0\0\0\0\0\xC0\x7F\0\0\0\0", 12)));
  CHECK_THAT(p.problem({"nan.npy", "y.npy"}),
             ContainsSubstring("nan.npy: example 1 (from 0) holds nan"));
  p.write("big.npy", npy("<i8", "(1, 1)", std::string("\1\0\0\0\0\0\x20\0", 8)));
  p.write("y1.npy", npy("|u1", "(1,)", "a"));
  CHECK_THAT(p.problem({"big.npy", "y1.npy"}), ContainsSubstring("2^53 or beyond"));
  p.options.target = "first";
  CHECK_THAT(p.problem({"x.npy", "y.npy"}, Exit::usage),
             ContainsSubstring("names a column of CSV"));
}

TEST_CASE("the validation split is a share of each class, or files of its own",
          "[prepare_examples]") {
  Prepared p;
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += str(i, ".5,", i % 10 == 0 ? "rare" : i % 2 == 0 ? "even" : "odd", "\n");
  p.options.val_share = 0.2;
  const auto m = p.csv(text);
  CHECK(m.train.examples == 80);
  CHECK(m.val.examples == 20);
  std::map<double, int> of_class;
  std::set<double> all;
  for (const auto& row : p.rows("val")) ++of_class[row[1]], all.insert(row[0]);
  CHECK(of_class == std::map<double, int>{{0, 8}, {1, 10}, {2, 2}});
  const auto first = p.rows("val");
  for (const auto& row : p.rows("train")) all.insert(row[0]);
  CHECK(all.size() == 100);
  p.csv(text);
  CHECK(p.rows("val") == first);  // the same each time
  CHECK(first.front()[0] < 50);   // and no tail
  // A class of one example stays in training.
  p.options.val_share = 0.9;
  p.csv("1,a\n2,b\n3,b\n4,b\n");
  CHECK(p.rows() == Rows{p.rows()[0], p.rows()[1]});
  CHECK(p.rows()[0] == std::vector<double>{1, 0});
  // By file.
  p.write("val.csv", "200,odd\n201.25,rare\n");
  p.options.val_inputs = {(p.f / "val.csv").string()};
  CHECK(p.csv(text).train.examples == 100);
  CHECK(p.rows("val") == Rows{{200, 1}, {201.25, 2}});
  p.write("val.csv", "200,odd\n201.25,new\n");
  CHECK_THAT(
      p.csv_problem(text),
      ContainsSubstring("val.csv:2: column 2 is \"new\", a class that no training example has"));
  p.write("val.csv", "1,200,odd\n");
  CHECK_THAT(p.csv_problem(text), ContainsSubstring("val.csv:1 has 3 columns"));
}

/// Prepares in a process of its own that ends at the n-th time it comes to a fault point; its exit
/// code.
int prepare_killed(const ExampleOptions& options, const std::string& point, int n) {
  const pid_t pid = fork();
  if (pid == 0) {
    static std::string at;
    static int left;
    at = point, left = n;
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

TEST_CASE("an interrupted preparation is repeated by the same call, and nobody's file is lost",
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
  CHECK(prepare_killed(options, "none", 1) == static_cast<int>(Exit::usage));  // it holds data
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
    REQUIRE(prepare_killed(options, point, times) == 137);  // and once more
    prepare_examples(options);
    CHECK(slurp(options.out / "notes.txt") == "mine");
    fs::remove(options.out / "notes.txt");
    CHECK(names(options.out) == files);
    for (const auto& name : files) CHECK(slurp(options.out / name) == slurp(f / "whole" / name));
  }
  // What a person put there in its place stays.
  options.out = f / "theirs";
  REQUIRE(prepare_killed(options, "prepare: shard renamed", 2) == 137);
  write_file(options.out / "train_inputs.npy", "mine");
  CHECK_THAT(error_of([&] { prepare_examples(options); }),
             ContainsSubstring("is not what an interrupted"));
  CHECK(slurp(options.out / "train_inputs.npy") == "mine");
  fs::create_directories(f / "raw");
  write_file(f / "raw/val_inputs.npy", "mine");
  options.out = f / "raw";
  CHECK_THAT(error_of([&] { prepare_examples(options); }), ContainsSubstring("already holds data"));
  CHECK(names(f / "raw") == std::set<std::string>{"val_inputs.npy"});
}

TEST_CASE("a stop is heeded every few megabytes, and leaves nothing of a table",
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
    asked = 0, last = n;
    CHECK_THAT(error_of([&] { prepare_examples(options); }),
               ContainsSubstring("stopped; nothing is left"));
    CHECK(!fs::exists(f / "a"));
  }
}

}  // namespace
