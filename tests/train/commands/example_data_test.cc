// Tests commands on tables: data of another source, names in capital letters, extreme values and
// sizes.
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "nn/state.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns a table of numbers from `low` to 10, in two classes: above 5, and up to 5.
std::string table_of(int rows, double low, const std::string& head = "x,y,label",
                     const std::string& above = "high", const std::string& below = "low") {
  std::string text = head + "\n";
  for (int i = 0; i < rows; ++i) {
    const double x = low + (10 - low) * ((i * 37) % rows) / rows;
    text += str(x, ",", 2 * x, ",", x > 5 ? above : below, "\n");
  }
  return text;
}

/// A folder with a run that was trained on a table of table_of().
struct TableRun {
  TempFolder f;

  TableRun() {
    write_file(f / "mlp.toml",
               "[model]\nkind = \"mlp\"\nn_hidden = 16\n[optim]\nkind = \"adam\"\nlr = "
               "5e-3\nweight_decay = 0.0\n[schedule]\nwarmup_steps = 10\n[train]\nsteps = "
               "300\nbatch_size = 32\nthreads = 1\n[data]\ndir = \"train\"\n");
    write_file(f / "train.csv", table_of(200, 0));
    prepare("train.csv", "train");
    REQUIRE(lathe_in(f, {"train", "mlp.toml", "--train.out_dir=run"}).code == 0);
  }
  void prepare(const std::string& file, const std::string& folder) const {
    const Finished r = lathe_in(f, {"prepare", file, "--out", folder, "--val", "0.5"});
    INFO(r.err);
    REQUIRE(r.code == 0);
  }
  /// Writes a table to NAME.csv, prepares it with the column `id` as ids, and trains the run `out`.
  void train_table(const std::string& name, const std::string& table, const std::string& id,
                   const std::string& out) const {
    write_file(f / (name + ".csv"), table);
    const Finished prepared =
        lathe_in(f, {"prepare", name + ".csv", "--out", name, "--id", id, "--val", "0.2"});
    INFO(prepared.err);
    REQUIRE(prepared.code == 0);
    REQUIRE(lathe_in(f, {"train", "mlp.toml", "--data.dir=" + name, "--train.out_dir=" + out,
                         "--train.steps=2"})
                .code == 0);
  }
};

TEST_CASE(
    "eval normalizes other data with the run's statistics, and refuses other columns or classes",
    "[example_data]") {
  const TableRun run;
  // Most numbers in this table are above 5. If they were normalized by their own mean, the border
  // between the classes would move.
  write_file(run.f / "test.csv", table_of(200, 4));
  run.prepare("test.csv", "test");
  const Finished same = lathe_in(run.f, {"eval", "run", "--data", "test"});
  INFO(same.err);
  REQUIRE(same.code == 0);
  const Json json = parse_json(same.out.substr(same.out.rfind("\n{") + 1), "eval", Exit::internal);
  CHECK(json["accuracy"].get<double>() >= 0.97);
  CHECK(json["samples"] == 100);

  write_file(run.f / "swapped.csv", table_of(100, 0, "y,x,label"));
  write_file(run.f / "renamed.csv", table_of(100, 0, "x,y,label", "warm", "cold"));
  for (const auto& [name, message] : std::vector<std::pair<std::string, std::string>>{
           {"swapped", "input 1 is y"}, {"renamed", "class 1 is cold"}}) {
    run.prepare(name + ".csv", name);
    const Finished other = lathe_in(run.f, {"eval", "run", "--data", name});
    CHECK(other.code == 3);
    CHECK_THAT(other.err, ContainsSubstring(message));
  }
}

TEST_CASE("regression on other data reports errors in the units of its targets", "[example_data]") {
  const TempFolder f;
  const auto squares = [](double low) {
    std::string text = "x,y\n";
    for (int i = 0; i < 200; ++i) {
      const double x = low + (1 - low) * ((i * 37) % 200) / 200;
      text += str(x, ",", x * x, "\n");
    }
    return text;
  };

  write_file(f / "mlp.toml",
             "[model]\nkind = \"mlp\"\nn_hidden = 32\n[optim]\nlr = 1e-2\nweight_decay = "
             "0.0\n[schedule]\nwarmup_steps = 10\n[train]\nsteps = 400\nthreads = 1\n");
  for (const auto& [name, low] : {std::pair("train", -1.0), {"test", 0.0}}) {
    write_file(f / (std::string(name) + ".csv"), squares(low));
    REQUIRE(lathe_in(f, {"prepare", std::string(name) + ".csv", "--out", name, "--task",
                         "regression", "--val", "0.5"})
                .code == 0);
  }

  REQUIRE(lathe_in(f, {"train", "mlp.toml", "--data.dir=train", "--train.out_dir=run"}).code == 0);
  const Finished r = lathe_in(f, {"eval", "run", "--data", "test"});
  INFO(r.err << r.out);
  REQUIRE(r.code == 0);
  const Json json = parse_json(r.out.substr(r.out.rfind("\n{") + 1), "eval", Exit::internal);
  CHECK(json["mae"].get<double>() < 0.1);  // would be 0.25 with the statistics of the other data
}

/// Returns the predictions of a run for a table of one column.
std::vector<double> predictions(const TempFolder& f, const std::string& run,
                                const std::string& file) {
  const Finished done = lathe_in(f, {"predict", run, file});
  INFO(done.err);
  REQUIRE(done.code == 0);
  std::vector<double> all;
  std::istringstream lines(done.out);
  std::string line;
  std::getline(lines, line);  // the header
  while (std::getline(lines, line)) all.push_back(std::stod(line.substr(line.rfind(',') + 1)));
  return all;
}

TEST_CASE(
    "a run with train.init_from or adapters.base normalizes data with the statistics of the run "
    "that the key names",
    "[example_data]") {
  const TempFolder f;
  const std::string rest =
      "[optim]\nlr = 1e-2\n[schedule]\nwarmup_steps = 1\n[train]\nsteps = 20\nthreads = 1\n";
  write_file(f / "mlp.toml", "[model]\nkind = \"mlp\"\nn_hidden = 8\n" + rest);
  write_file(f / "tune.toml", "[model]\nkind = \"mlp\"\n" + rest);
  for (const auto& [name, scale] : {std::pair("wide", 1.0), {"narrow", 0.1}}) {
    std::string text = "x,y\n";
    for (int i = 0; i < 50; ++i) text += str(scale * i, ",", 3 * scale * i, "\n");
    write_file(f / (std::string(name) + ".csv"), text);
    REQUIRE(
        lathe_in(f, {"prepare", std::string(name) + ".csv", "--out", name, "--task", "regression"})
            .code == 0);
  }
  write_file(f / "new.csv", "x\n1\n20\n40\n");
  REQUIRE(lathe_in(f, {"train", "mlp.toml", "--data.dir=wide", "--train.out_dir=base"}).code == 0);
  const std::vector<double> of_base = predictions(f, "base", "new.csv");

  // With a learning rate of 0 the model stays the same, also after a resume.
  const auto tune = [&](const std::string& run, const std::vector<std::string>& keys) {
    std::vector<std::string> words{"train", "tune.toml", "--data.dir=narrow", "--optim.lr=0",
                                   "--train.out_dir=" + run};
    words.insert(words.end(), keys.begin(), keys.end());
    const Finished done = lathe_in(f, words);
    INFO(done.err);
    return done.code;
  };
  REQUIRE(tune("tuned", {"--train.init_from=base", "--train.pause_at=10"}) == 75);
  REQUIRE(tune("tuned", {"--train.init_from=base"}) == 0);
  CHECK(predictions(f, "tuned", "new.csv") == of_base);
  REQUIRE(tune("whole", {"--train.init_from=base"}) == 0);
  CHECK(difference(f / "whole", f / "tuned") == "");

  write_file(f / "adapted.toml", rest);
  REQUIRE(lathe_in(f, {"train", "adapted.toml", "--data.dir=narrow", "--optim.lr=0",
                       "--adapters.base=base", "--adapters.rank=1", "--train.out_dir=adapted"})
              .code == 0);
  CHECK(predictions(f, "adapted", "new.csv") == of_base);
}

TEST_CASE("train.init_from refuses a run with other classes or another task", "[example_data]") {
  const TableRun run;
  write_file(run.f / "renamed.csv", table_of(100, 0, "x,y,label", "warm", "cold"));
  run.prepare("renamed.csv", "renamed");
  const Finished other = lathe_in(run.f, {"train", "mlp.toml", "--data.dir=renamed",
                                          "--train.init_from=run", "--train.out_dir=other"});
  CHECK(other.code == 3);
  CHECK_THAT(other.err, ContainsSubstring("class 1 is cold"));

  // A regression with two outputs can't start from a classification with two classes, although
  // their weights have the same sizes.
  const at::Tensor pairs = torch::arange(100, at::kFloat).view({50, 2});
  write_safetensors(run.f / "pairs.safetensors",
                    {make_entry("inputs", pairs), make_entry("targets", pairs)});
  REQUIRE(
      lathe_in(run.f, {"prepare", "pairs.safetensors", "--out", "pairs", "--task", "regression"})
          .code == 0);
  const Finished task = lathe_in(run.f, {"train", "mlp.toml", "--data.dir=pairs",
                                         "--train.init_from=run", "--train.out_dir=other"});
  CHECK(task.code == 3);
  CHECK_THAT(task.err, ContainsSubstring("pairs") && ContainsSubstring("step-00000300"));
  CHECK(!fs::exists(run.f / "other"));
}

TEST_CASE("predictions of large numbers keep the digits that distinguish them", "[example_data]") {
  const TempFolder f;
  write_file(f / "mlp.toml",
             "[model]\nkind = \"mlp\"\nn_hidden = 16\n[optim]\nlr = 1e-2\nweight_decay = "
             "0.0\n[schedule]\nwarmup_steps = 10\n[train]\nsteps = 300\nthreads = 1\n");
  std::string text = "x,y\n";
  for (int i = 0; i < 100; ++i) text += str(i, ",", 1700000000 + i, "\n");
  write_file(f / "times.csv", text);
  REQUIRE(lathe_in(f, {"prepare", "times.csv", "--out", "times", "--task", "regression"}).code ==
          0);
  REQUIRE(lathe_in(f, {"train", "mlp.toml", "--data.dir=times", "--train.out_dir=run"}).code == 0);
  write_file(f / "new.csv", "x\n10\n50\n90\n");
  const std::vector<double> times = predictions(f, "run", "new.csv");
  // float32 has a spacing of 128 here.
  for (size_t i = 0; i < times.size(); ++i)
    CHECK(std::abs(times[i] - 1700000010 - 40.0 * static_cast<double>(i)) < 4);
}

TEST_CASE("a first line with a number that is not an integer is a row of the data",
          "[example_data]") {
  const TempFolder f;
  const auto examples_of = [&](const std::string& first) {
    std::string text = first + "\n";
    for (int i = 0; i < 40; ++i)
      text += str("name", i, ",", i, ",", i % 2 == 0 ? "even" : "odd", "\n");
    write_file(f / "t.csv", text);
    fs::remove_all(f / "t");
    const Finished done =
        lathe_in(f, {"prepare", "t.csv", "--out", "t", "--id", "1", "--val", "0"});
    INFO(done.err);
    REQUIRE(done.code == 0);
    const std::string all = done.out + done.err;
    const size_t end = all.find(" training");
    REQUIRE(end != std::string::npos);
    return all.substr(all.rfind(' ', end - 1) + 1, end - all.rfind(' ', end - 1) - 1);
  };
  CHECK(examples_of("emma,0.092,even") == "41");
  CHECK(examples_of("id,2020,class") == "40");  // a year may name a column

  // Ascending numbers are taken as column names, such as wavelengths.
  std::string spectra = "id,400.5,401,401.5,class\n";
  for (int i = 0; i < 40; ++i)
    spectra += str("name", i, ",", i, ",0.5,", 40 - i, ",", i % 2 == 0 ? "even" : "odd", "\n");
  write_file(f / "s.csv", spectra);
  const Finished named = lathe_in(f, {"prepare", "s.csv", "--out", "s", "--id", "1", "--val", "0"});
  CHECK_THAT(named.out + named.err, ContainsSubstring("40 training"));
}

TEST_CASE("predict reads the inputs of a file that prepare reads", "[example_data]") {
  const TempFolder f;
  const at::Tensor x = torch::arange(40, at::kFloat).view({20, 2}), y = x.sum(1, true);
  write_safetensors(f / "both.safetensors", {make_entry("inputs", x), make_entry("targets", y)});
  write_safetensors(f / "alone.safetensors", {make_entry("x", x)});
  write_file(f / "mlp.toml", "[model]\nkind = \"mlp\"\n[train]\nsteps = 2\nthreads = 1\n");
  REQUIRE(
      lathe_in(f, {"prepare", "both.safetensors", "--out", "data", "--task", "regression"}).code ==
      0);
  REQUIRE(lathe_in(f, {"train", "mlp.toml", "--data.dir=data", "--train.out_dir=run"}).code == 0);
  const Finished both = lathe_in(f, {"predict", "run", "both.safetensors"});
  INFO(both.err);
  CHECK(both.code == 0);
  CHECK(both.out == lathe_in(f, {"predict", "run", "alone.safetensors"}).out);
}

TEST_CASE("a file's name may be in capital letters, and a compressed table is refused",
          "[example_data]") {
  const TempFolder f;
  write_file(f / "T.CSV", table_of(40, 0));
  const Finished table = lathe_in(f, {"prepare", "T.CSV", "--out", "t"});
  CHECK(table.code == 0);
  CHECK_THAT(table.err + table.out, ContainsSubstring("2 classes"));

  write_file(f / "T.JSONL", "{\"text\": \"one\"}\n{\"text\": \"two and three\"}\n");
  const Finished lines = lathe_in(f, {"prepare", "T.JSONL", "--out", "j", "--val", "0"});
  CHECK(lines.code == 0);
  CHECK_THAT(lines.err + lines.out, ContainsSubstring("documents: 2 read"));

  write_file(f / "t.csv.gz", "nothing that is read");
  const Finished packed = lathe_in(f, {"prepare", "t.csv.gz", "--out", "z"});
  CHECK(packed.code == 2);
  CHECK_THAT(packed.err, ContainsSubstring("t.csv.gz") && ContainsSubstring("compressed table"));
  CHECK(!fs::exists(f / "z"));
}

TEST_CASE(
    "values whose standard deviation overflows float64 are refused before anything is created",
    "[example_data]") {
  const TempFolder f;
  write_file(f / "h.csv", "x,y\n1e200,a\n-1e200,b\n1e200,a\n-1e200,b\n1,a\n2,b\n3,a\n4,b\n");
  const Finished r = lathe_in(f, {"prepare", "h.csv", "--out", "h"});
  CHECK(r.code == 3);
  CHECK_THAT(r.err, ContainsSubstring("target 1 ") && ContainsSubstring("standard deviation"));
  CHECK(!fs::exists(f / "h/manifest.json"));

  // Class labels that are equal in float64 are also refused.
  std::string ids = "x,y\n";
  for (int i = 0; i < 8; ++i) ids += str(i, ",", 9007199254740992 + i % 2, "\n");
  write_file(f / "ids.csv", ids);
  const Finished large = lathe_in(f, {"prepare", "ids.csv", "--out", "ids"});
  CHECK(large.code == 3);
  CHECK_THAT(large.err, ContainsSubstring("ids.csv") && ContainsSubstring("2^53"));
}

TEST_CASE("find batch, plan and train know that batch norm needs two examples", "[example_data]") {
  const TableRun run;
  const std::vector<std::string> norm{"mlp.toml", "--model.norm=batch"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), norm.begin(), norm.end());
    words.insert(words.end(), more.begin(), more.end());
    return lathe_in(run.f, words);
  };
  const Finished found = with({"find", "batch"}, {"--memory=400MB", "--rounds=2"});
  INFO(found.err);
  REQUIRE(found.code == 0);
  const Json json =
      parse_json(found.out.substr(found.out.rfind("\n{") + 1), "find", Exit::internal);
  CHECK(json["measured_bytes"].get<int64_t>() <= 400000000);

  CHECK(with({"plan"}, {"--fit=1GB"}).code == 0);
  const Finished one = with({"train"}, {"--train.batch_size=1", "--train.out_dir=one"});
  CHECK(one.code == 2);
  CHECK_THAT(one.err, ContainsSubstring("train.batch_size"));
  CHECK(with({"find", "batch"}, {"--memory=1MB"}).code == 9);

  // For a small model, the limit allows a larger batch than the largest one that `lathe find batch`
  // tries.
  const Finished most = with({"find", "batch"}, {"--memory=4GB", "--rounds=2"});
  REQUIRE(most.code == 0);
  CHECK_THAT(most.out, ContainsSubstring("\"batch_size\":65536,"));
}

TEST_CASE("find batch proposes no batch that took more than the limit", "[example_data]") {
  const TempFolder f;
  write_file(f / "conv.toml",
             "[model]\nkind = \"convnet\"\n[train]\nthreads = 1\n[data]\ndir = \"images\"\n");
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    for (int pixel = 0; pixel < 64; ++pixel) rows += str((i * 7 + pixel * 3) % 256, ",");
    rows += str(i % 2, "\n");
  }
  write_file(f / "images.csv", rows);
  REQUIRE(lathe_in(f, {"prepare", "images.csv", "--out", "images", "--shape", "1,8,8"}).code == 0);

  int proposals = 0;
  for (const int64_t limit : {160, 200, 330}) {
    const Finished found =
        lathe_in(f, {"find", "batch", "conv.toml", str("--memory=", limit, "MB"), "--rounds=2"});
    INFO(found.out << found.err);
    REQUIRE((found.code == 0 || found.code == 9));
    if (found.code != 0) continue;
    const Json json =
        parse_json(found.out.substr(found.out.rfind("\n{") + 1), "find", Exit::internal);
    CHECK(json["measured_bytes"].get<int64_t>() <= limit * 1000000);
    ++proposals;
  }
  CHECK(proposals > 0);
}

TEST_CASE("an id column is renamed to id if the predictions have another column of its name",
          "[example_data]") {
  const TableRun run;
  std::string table = "class,x,y,kind\n";
  for (int i = 0; i < 40; ++i) table += str("row", i, ",", i, ",", 40 - i, ",", i % 2, "\n");
  run.train_table("named", table, "class", "by-name");
  const Finished predicted = lathe_in(run.f, {"predict", "by-name", "named.csv"});
  INFO(predicted.err);
  CHECK(predicted.out.starts_with("id,class,p_0,p_1\nrow0,"));
}

TEST_CASE("tables are not prepared as text unless --format text asks for it", "[example_data]") {
  const TempFolder f;
  fs::create_directories(f / "tables");
  write_file(f / "tables/a.csv", "x,y,kind\n1,2,a\n3,4,b\n");
  fs::copy(f / "tables/a.csv", f / "b.csv");
  write_file(f / "words.txt", "some words of text\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"prepare", "tables"},
        {"prepare", "words.txt", "b.csv"},
        {"prepare", "words.txt", "tables"},
        {"prepare", "--source", "a=tables", "--source", "b=words.txt"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--out", "out"});
    const Finished done = lathe_in(f, all);
    INFO(done.out << done.err);
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring(".csv") && ContainsSubstring("--format text"));
    CHECK(!fs::exists(f / "out"));
  }
  const Finished text =
      lathe_in(f, {"prepare", "tables", "words.txt", "--format", "text", "--out", "out"});
  INFO(text.err);
  CHECK(text.code == 0);
}

TEST_CASE("ids that are not UTF-8 are kept in CSV and refused in JSON Lines", "[example_data]") {
  const TableRun run;
  std::string table = "key,x,y,kind\n";
  for (int i = 0; i < 40; ++i)
    table += str("caf", static_cast<char>(0xC0 + i), ",", i, ",", 40 - i, ",", i % 2, "\n");
  run.train_table("latin", table, "key", "by-key");

  const auto predict = [&](const std::string& out) {
    return lathe_in(run.f, {"predict", "by-key", "latin.csv", "--out", out});
  };
  const Finished lines = predict("p.jsonl");
  CHECK(lines.code == 3);
  CHECK_THAT(lines.err, ContainsSubstring("latin.csv:2") && ContainsSubstring("UTF-8"));
  CHECK(!fs::exists(run.f / "p.jsonl"));
  CHECK(predict("p.csv").code == 0);
  CHECK_THAT(slurp(run.f / "p.csv"), ContainsSubstring("\ncaf\xC1,"));
}

TEST_CASE("an error names options that work where the target has no name", "[example_data]") {
  const TempFolder f;
  write_file(f / "t.csv", "a,b,kind,\n1,2,x,\n3,4,y,\n5,6,x,\n");
  const Finished r = lathe_in(f, {"prepare", "t.csv", "--out", "t"});
  CHECK(r.code == 3);
  CHECK_THAT(r.err, ContainsSubstring("--target 3 --drop 4"));
  CHECK(lathe_in(f, {"prepare", "t.csv", "--out", "t", "--target", "3", "--drop", "4"}).code == 0);
}

/// Creates the folder d with a text of four characters.
void prepare_letters(const TempFolder& f) {
  write_file(f / "t.txt", std::string(2000, 'a') + "bcd");
  REQUIRE(lathe_in(f, {"prepare", "t.txt", "--out", "d", "--tokenizer", "char"}).code == 0);
}

TEST_CASE("a range of blocks also works for models without block numbers in parameter names",
          "[example_data]") {
  const TempFolder f;
  prepare_letters(f);
  write_file(f / "rnn.toml",
             "[model]\nkind = \"rnn\"\nn_embd = 8\nblock_size = 8\n[train]\nsteps = "
             "2\neval_interval = 0\nthreads = 1\n[data]\ndir = \"d\"\n");
  const auto trained = [&](const std::string& blocks) {
    return lathe_in(f, {"train", "rnn.toml", "--train.out_dir=" + blocks,
                        "--memory.recompute=" + blocks})
        .code;
  };
  CHECK(trained("blocks.0-0") == 0);
  CHECK(trained("blocks.7-9") == 2);
}

TEST_CASE("bench refuses to skip all steps, and takes the vocabulary from the data",
          "[example_data]") {
  const TempFolder f;
  prepare_letters(f);
  write_file(f / "c.toml",
             "[model]\nn_layer = 1\nn_head = 2\nn_embd = 16\nblock_size = 16\n"
             "[train]\nsteps = 3\nthreads = 1\n[data]\ndir = \"d\"\n");
  CHECK(lathe_in(f, {"bench", "step", "c.toml", "--skip", "3"}).code == 2);
  CHECK(lathe_in(f, {"bench", "step", "c.toml", "--skip", "1"}).code == 0);
  const Finished r = lathe_in(f, {"bench", "generate", "c.toml", "--tokens", "4"});
  INFO(r.err);
  CHECK(r.code == 0);
}

TEST_CASE("a byte order mark is not part of a text", "[example_data]") {
  const TempFolder f;
  const std::string mark = "\xEF\xBB\xBF", text = "abcabcabcabc";
  write_file(f / "marked.txt", mark + text);
  write_file(f / "plain.txt", text);
  for (const std::string tokenizer : {"char", "byte"}) {
    for (const std::string name : {"marked", "plain"})
      REQUIRE(lathe_in(f, {"prepare", name + ".txt", "--out", name + tokenizer, "--tokenizer",
                           tokenizer, "--val", "0.25"})
                  .code == 0);
    for (const std::string file : {"train.bin", "val.bin"})
      CHECK(read_file(f / ("marked" + tokenizer) / file, Exit::io) ==
            read_file(f / ("plain" + tokenizer) / file, Exit::io));
  }
}

TEST_CASE("predictions that are not finite end with exit code 5 and leave no file",
          "[example_data]") {
  const TableRun run;
  std::string table = "x,y,kind\n";
  for (int i = 0; i < 40; ++i) table += str(i, ",", 40 - i, ",", i % 2, "\n");
  write_file(run.f / "plain.csv", table);
  write_file(run.f / "far.csv", "x,y\n1,2\n1e300,2\n");
  write_file(run.f / "near.csv", "x,y\n1,2\n3,2\n");
  REQUIRE(lathe_in(run.f, {"prepare", "plain.csv", "--out", "plain", "--val", "0.2"}).code == 0);
  REQUIRE(lathe_in(run.f, {"train", "mlp.toml", "--data.dir=plain", "--train.out_dir=plain-run",
                           "--train.steps=2"})
              .code == 0);
  const Finished far = lathe_in(run.f, {"predict", "plain-run", "far.csv", "--out", "p.csv"});
  CHECK(far.code == 5);
  CHECK_THAT(far.err, ContainsSubstring("example 2"));
  CHECK(!fs::exists(run.f / "p.csv"));
  CHECK(lathe_in(run.f, {"predict", "plain-run", "near.csv", "--out", "p.csv"}).code == 0);
}

TEST_CASE("prepare warns if no example is left for validation", "[example_data]") {
  const TempFolder f;
  write_file(f / "prices.csv", "x,price\n1,70000\n2,80000\n3,90000\n");
  const Finished few = lathe_in(f, {"prepare", "prices.csv", "--out", "few", "--target", "price",
                                    "--task", "classification", "--val", "0.5"});
  CHECK(few.code == 0);
  CHECK_THAT(few.err + few.out,
             ContainsSubstring(" 0 validation") && ContainsSubstring("--task regression"));
  const Finished numbers = lathe_in(f, {"prepare", "prices.csv", "--out", "numbers", "--target",
                                        "price", "--task", "regression", "--val", "0.4"});
  CHECK(numbers.code == 0);
  CHECK_THAT(numbers.err + numbers.out, ContainsSubstring(" 1 validation"));
}

TEST_CASE("a run that diverges before its first logged step is listed as diverged",
          "[example_data]") {
  const TableRun run;
  const Finished r =
      lathe_in(run.f, {"train", "mlp.toml", "--optim.kind=sgd", "--optim.lr=1e38",
                       "--optim.grad_clip=0", "--schedule.warmup_steps=0", "--train.out_dir=d"});
  REQUIRE(r.code == 5);
  CHECK_THAT(lathe_in(run.f, {"runs", "d"}).out, ContainsSubstring("diverged"));
}

}  // namespace
