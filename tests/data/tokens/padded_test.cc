// Tests of padded batches of single documents (data.packing = "examples").
#include <cmath>

#include "core/io/json.h"
#include "data/loader.h"
#include "data/prepare/prepare_documents.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Prepares 7 documents: a prompt of one or two dots, an answer of 0 to 6 letters, and a line
/// break. Returns the folder.
fs::path answers_in(const TempFolder& f, double val_share = 0) {
  std::string lines;
  for (int i = 0; i < 7; ++i)
    lines += str("{\"prompt\": \"", std::string(static_cast<size_t>(1 + i % 2), '.'),
                 "\", \"completion\": \"",
                 std::string(static_cast<size_t>(i), static_cast<char>('a' + i)), "\"}\n");
  write_file(f / "answers.jsonl", lines);
  DocumentOptions o{.source = {.files = {(f / "answers.jsonl").string()},
                               .format = "instructions",
                               .field = "messages"},
                    .out = f / "answers"};
  o.val_share = val_share;
  prepare_documents(o);
  return o.out;
}

std::unique_ptr<Data> open_padded(const fs::path& folder) {
  return open_data({.dir = folder.string(), .packing = "examples", .document_end = '\n'});
}

/// Returns a row of a batch: its input tokens, then ">" and its targets.
std::string row_text(const Batch& b, int64_t row) {
  std::string read, learned;
  for (int64_t t = 0; t < b.inputs.size(1); ++t) {
    const int64_t id = b.inputs[row][t].item<int64_t>(), to = b.targets[row][t].item<int64_t>();
    read += id == 0 ? '_' : static_cast<char>(id);
    if (to != -100) learned += to == '\n' ? '$' : static_cast<char>(to);
  }
  return read + ">" + learned;
}

TEST_CASE("a document keeps its first token if the same token ends documents", "[padded]") {
  const TempFolder f;
  write_file(f / "text.txt", "$ab$$cd$$e$");
  prepare({.inputs = {(f / "text.txt").string()}, .out = f / "data", .val_share = 0});
  const auto data =
      open_data({.dir = (f / "data").string(), .packing = "examples", .document_end = '$'});
  const BatchSizes sizes{.batch_size = 3, .block_size = 5, .vocab_size = 256};
  std::multiset<std::string> seen;
  for (const Batch& b : draw_batches(*data, sizes, 1, 0, 1, at::kCPU)) {
    for (int64_t row = 0; row < 3; ++row) seen.insert(row_text(b, row));
  }
  CHECK(seen == std::multiset<std::string>{"$ab__>ab$", "$cd__>cd$", "$e___>e$"});
}

TEST_CASE("a row is one document, padded or truncated", "[padded]") {
  const TempFolder f;
  const auto data = open_padded(answers_in(f));
  const BatchSizes sizes{.batch_size = 3, .block_size = 5, .vocab_size = 256};
  data->check_windows(sizes);
  const auto training = data->training(sizes, 1);
  std::multiset<std::string> seen;
  int64_t n = 0;
  for (const Batch& b : draw_batches(*data, sizes, 1, 0, 7, at::kCPU)) {
    CHECK(training->targets(n++) == count_targets(b));
    for (int64_t row = 0; row < 3; ++row) seen.insert(row_text(b, row));
  }
  // The batches cover three epochs of seven documents.
  CHECK(seen.size() == 21);
  for (const char* row : {".____>$", "..b__>b$", ".cc__>cc$", "..ddd>ddd$", ".eeee>eeee$",
                          "..fff>ffff", ".gggg>ggggg"}) {
    INFO(row);
    CHECK(seen.count(row) == 3);
  }
}

TEST_CASE("an evaluation reads the documents in order, or a sample of them", "[padded]") {
  const TempFolder f;
  const auto data = open_padded(answers_in(f, 0.6));
  const BatchSizes sizes{.batch_size = 2, .block_size = 8, .vocab_size = 256};
  std::string rows;
  int64_t batches = 0;
  const auto all = data->evaluation(sizes, 0, at::kCPU);
  for (Batch b; all->next(b); ++batches) {
    for (int64_t row = 0; row < b.inputs.size(0); ++row) rows += row_text(b, row) + " ";
  }
  CHECK_THAT(rows, ContainsSubstring("..fffff_>fffff$ .gggggg_>gggggg$ "));
  const auto some = data->evaluation(sizes, 1, at::kCPU);
  Batch b;
  CHECK(some->next(b));
  CHECK(b.inputs.size(0) == 2);
  CHECK(!some->next(b));
  CHECK(batches > 1);
}

TEST_CASE("runs on padded documents resume, do not depend on accumulation, and refuse wrong keys",
          "[padded]") {
  const TempFolder f;
  make_tiny_run(f.path(), "[dist]\nbucket_mb = 1\n");
  answers_in(f, 0.3);
  const auto train = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",
                                   "tiny.toml",
                                   "--train.out_dir=" + out,
                                   "--data.dir=answers",
                                   "--data.packing=examples",
                                   "--data.document_end=10",
                                   "--model.dropout=0"};
    for (const std::string& key : more) {
      const std::string name = key.substr(0, key.find('=') + 1);
      std::erase_if(words, [&](const std::string& word) { return word.starts_with(name); });
      words.push_back(key);
    }
    return lathe_in(f, words);
  };
  const auto first_loss = [&](const std::string& out) {
    const std::string metrics = slurp(f / out / "metrics.jsonl");
    const size_t at = metrics.find("\"loss\":");
    return std::stod(metrics.substr(at + 7));
  };
  const Finished whole = train("whole", {});
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  CHECK(train("parts", {"--train.pause_at=13"}).code == 75);
  CHECK(train("parts", {}).code == 0);
  CHECK(difference(f / "whole", f / "parts") == "");
  CHECK(train("one", {"--train.batch_size=1", "--train.grad_accum=6"}).code == 0);
  CHECK(first_loss("one") == Approx(first_loss("whole")).epsilon(1e-5));
  CHECK(lathe_in(f, {"eval", "whole"}).code == 0);

  for (const auto& [key, value] : {std::pair("data.documents", "separate"),
                                   {"data.document_end", "-1"},
                                   {"data.document_end", "5000"},
                                   {"data.dir", "data"},
                                   {"data.packing", "rows"}}) {
    INFO(key);
    const bool is_text = std::string(key) == "data.dir";
    std::vector<std::string> more{str("--", key, "=", value)};
    if (is_text) more.emplace_back("--data.document_end=-1");
    CHECK(train("refused", more).code == 2);
    CHECK(!fs::exists(f / "refused"));
  }
}

}  // namespace
