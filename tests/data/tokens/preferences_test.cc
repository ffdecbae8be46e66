// Tests of preference data: its formats, the learned parts of a pair, and batches.
#include "data/loader.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Prepares lines of preferences; returns the folder.
fs::path pairs_of(const TempFolder& f, const std::string& lines, const Tokenizer& tokenizer,
                  double val_share = 0) {
  static int made = 0;
  const std::string name = "pairs" + std::to_string(made++);
  write_file(f / (name + ".jsonl"), lines);
  DocumentOptions o{
      .source = {.files = {(f / (name + ".jsonl")).string()}, .format = "preferences"},
      .out = f / name,
      .tokenizer = tokenizer};
  o.val_share = val_share;
  prepare_documents(o);
  return f / name;
}

/// Returns the rows of a split, one per line, with brackets around the learned parts.
std::string rows_text(const fs::path& folder, const char* split = "train") {
  const auto manifest = read_manifest(folder);
  const TokenFile file(folder, split, manifest);
  std::vector<int64_t> ids(static_cast<size_t>(file.size())), targets(ids.size());
  file.read(0, file.size(), manifest->vocab_size, ids.data());
  file.read_targets(0, file.size(), targets.data());

  const std::vector<int64_t> begins = file.begins();
  std::string text;
  bool learned = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool is_target = targets[i] != -100;
    CHECK((!is_target || targets[i] == ids[i]));
    const bool begins_row =
        std::find(begins.begin(), begins.end(), static_cast<int64_t>(i)) != begins.end();

    // A learned part ends before a token that is not learned, and at the end of its row.
    if (learned && (!is_target || begins_row)) {
      text += "]";
      learned = false;
    }

    if (begins_row && i > 0) text += "\n";
    if (is_target && !learned) text += "[";
    learned = is_target;
    text += manifest->tokenizer.decode({ids[i]});
  }
  return text + (learned ? "]" : "");
}

const Tokenizer& chat_tokens() {
  static const Tokenizer made =
      byte_tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  return made;
}

/// Returns a message as JSON.
std::string says(const char* role, const char* text) {
  return str("{\"role\": \"", role, "\", \"content\": \"", text, "\"}");
}

TEST_CASE("both answers of a pair are learned after the same prompt", "[preferences]") {
  const TempFolder f;
  CHECK(rows_text(pairs_of(f, "{\"prompt\": \"2+2=\", \"chosen\": \"4\", \"rejected\": \"22\"}\n",
                           chat_tokens())) == "2+2=[4<|endoftext|>]\n2+2=[22<|endoftext|>]");

  // All formats with messages give the same pair.
  const std::string user = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
                    hi = says("user", "Hi"), yes = says("assistant", "Yes"),
                    no = says("assistant", "No");
  const std::string expected = user + "[Yes<|im_end|>]\n\n" + user + "[No<|im_end|>]\n";
  for (const std::string& line :
       {str("{\"prompt\": [", hi, "], \"chosen\": [", yes, "], \"rejected\": [", no, "]}"),
        str("{\"prompt\": [", hi, "], \"chosen\": \"Yes\", \"rejected\": \"No\"}"),
        str("{\"prompt\": \"Hi\", \"chosen\": [", yes, "], \"rejected\": [", no, "]}"),
        str("{\"prompt\": \"Hi\", \"chosen\": [", hi, ", ", yes, "], \"rejected\": [", hi, ", ", no,
            "]}"),
        str("{\"prompt\": [", hi, "], \"chosen\": [", hi, ", ", yes, "], \"rejected\": [", hi, ", ",
            no, "]}"),
        str("{\"chosen\": [", hi, ", ", yes, "], \"rejected\": [", hi, ", ", no, "]}")}) {
    INFO(line);
    CHECK(rows_text(pairs_of(f, line, chat_tokens())) == expected);
  }

  // With several turns, the prompt is the common beginning of both conversations.
  const std::string turns =
      str("{\"chosen\": [", hi, ", ", yes, ", ", hi, ", ", yes, "], \"rejected\": [", hi, ", ", yes,
          ", ", hi, ", ", no, "], \"system\": \"Be kind.\"}");
  const std::string both = rows_text(pairs_of(f, turns, chat_tokens()));
  CHECK_THAT(both, ContainsSubstring("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user"));
  CHECK_THAT(both, ContainsSubstring("assistant\nYes<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                     "<|im_start|>assistant\n[No<|im_end|>]"));

  const auto manifest =
      read_manifest(pairs_of(f,
                             "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n"
                             "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n",
                             chat_tokens()));
  CHECK(manifest->pairs);
  CHECK(manifest->documents["same_answers"] == 1);
  CHECK(manifest->documents["kept"] == 1);
  CHECK(manifest->documents["learned_tokens"] == 4);
  CHECK(manifest->largest_id == 256);
}

TEST_CASE("lines that are not preferences are refused with their line numbers", "[preferences]") {
  const TempFolder f;
  const std::string good = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
  const std::string hi = says("user", "Hi"), yes = says("assistant", "Yes");

  // Each element has a line, and words that only the error for this line contains.
  const std::vector<std::pair<std::string, std::string>> faults{
      {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "\"rejected\""},
      {"{\"chosen\": \"b\", \"rejected\": \"c\"}", "\"prompt\""},
      {"{\"prompt\": \"\", \"chosen\": \"b\", \"rejected\": \"c\"}", "empty prompt"},
      {"[]", "not a preference"},
      {str("{\"prompt\": \"a\", \"chosen\": [", yes, "], \"rejected\": \"c\"}"), "both lists"},
      {str("{\"prompt\": \"other\", \"chosen\": [", hi, ",", yes, "], \"rejected\": [", hi, ",",
           yes, "]}"),
       "the text of \"prompt\""},
      {str("{\"chosen\": [", hi, "], \"rejected\": [", hi, "]}"), "its roles are user"},
      {str("{\"chosen\": [", hi, ",", yes, ",", hi, "], \"rejected\": [", hi, ",", yes, "]}"),
       "does not end"},
      {str("{\"chosen\": [", yes, "], \"rejected\": [", yes, "]}"), "the same prompt"}};
  for (const auto& [bad, words] : faults) {
    INFO(bad);
    Exit code = Exit::done;
    std::string message;

    try {
      pairs_of(f, good + bad + "\n", chat_tokens());
    } catch (const Error& e) {
      code = e.code();
      message = e.what();
    }

    CHECK(code == Exit::data);
    CHECK_THAT(message, ContainsSubstring(".jsonl:2") && ContainsSubstring(words));
  }

  CHECK(rows_text(pairs_of(f, good, chat_tokens())) != "");  // accepted
}

/// Returns lines of n pairs with prompts of one to three bytes.
std::string many_pairs(int n) {
  std::string lines;
  for (int i = 0; i < n; ++i)
    lines += str("{\"prompt\": \"", std::string(static_cast<size_t>(1 + i % 3), 'p'),
                 "\", \"chosen\": \"", i, "+\", \"rejected\": \"", i, "--\"}\n");
  return lines;
}

TEST_CASE("the validation split begins at the start of a pair", "[preferences]") {
  const TempFolder f;
  for (const double share : {0.1, 0.23, 0.5, 0.77}) {
    const fs::path dir = pairs_of(f, many_pairs(40), Tokenizer::byte(), share);
    const auto data = open_data({.dir = dir.string()});
    CHECK(data->facts().pairs);
    CHECK(data->facts().task == "dpo");
    const auto all = static_cast<double>(data->train_size() + data->val_size());
    CHECK(std::abs(static_cast<double>(data->val_size()) / all - share) < 0.05);
    CHECK(rows_text(dir, "val").starts_with("p"));
    CHECK_THAT(rows_text(dir, "train"), ContainsSubstring("p[0+\n]\np[0--\n]"));
  }
}

TEST_CASE("batches have the padded chosen answers, then the padded rejected answers",
          "[preferences]") {
  const TempFolder f;
  const fs::path dir = pairs_of(f, many_pairs(6), Tokenizer::byte());
  const auto data = open_data({.dir = dir.string()});
  const BatchSizes sizes{.batch_size = 4, .block_size = 8, .vocab_size = 256};
  data->check_windows(sizes);
  const auto batches = draw_batches(*data, sizes, 1, 0, 6, at::kCPU);
  std::multiset<std::string> seen;
  for (const Batch& b : batches) {
    REQUIRE(b.inputs.sizes() == at::IntArrayRef({4, 8}));
    REQUIRE(b.targets.sizes() == at::IntArrayRef({4, 8}));
    for (int64_t row = 0; row < 4; ++row) {
      std::string prompt, answer;
      bool ended = false;
      for (int64_t t = 0; t < 8; ++t) {
        const int64_t in = b.inputs[row][t].item<int64_t>(), to = b.targets[row][t].item<int64_t>();
        if (in == 'p') prompt += 'p';
        if (to != -100) answer += static_cast<char>(to);
        if (to != -100 && t + 1 < 8 && to != '\n')
          CHECK(b.inputs[row][t + 1].item<int64_t>() == to);
        ended = ended || in == 0;
        if (ended) CHECK((in == 0 && to == -100));
      }
      CHECK(answer.ends_with(row < 2 ? "+\n" : "--\n"));
      seen.insert(prompt + answer);
    }
    // The two rows of a pair begin with the same token.
    for (int64_t pair = 0; pair < 2; ++pair)
      CHECK(b.inputs[pair][0].item<int64_t>() == b.inputs[2 + pair][0].item<int64_t>());
  }
  // In two epochs of six pairs, each row occurs twice.
  CHECK(seen.size() == 24);
  for (const std::string& row : seen) CHECK(seen.count(row) == 2);
  CHECK(data->training(sizes, 1)->targets(3) == 2);

  // The contents of a micro-batch depend only on its number.
  const auto later = draw_batches(*data, sizes, 1, 4, 1, at::kCPU);
  CHECK(later[0].inputs.equal(batches[4].inputs));
}

TEST_CASE("both prompts of a pair that is too long lose the same beginning", "[preferences]") {
  const TempFolder f;
  const fs::path dir =
      pairs_of(f, "{\"prompt\": \"abcdef\", \"chosen\": \"X\", \"rejected\": \"YZ\"}\n",
               Tokenizer::byte(), 0);
  const auto data = open_data({.dir = dir.string()});
  const auto rows = [&](int64_t window) {
    const Batch b = draw_batches(*data, {.batch_size = 2, .block_size = window, .vocab_size = 256},
                                 1, 0, 1, at::kCPU)[0];
    std::string text;
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t t = 0; t < window; ++t) {
        const int64_t id = b.inputs[row][t].item<int64_t>(), to = b.targets[row][t].item<int64_t>();
        text += id == 0 ? '.' : static_cast<char>(id);
        if (to != -100) text += str(">", to == '\n' ? '$' : static_cast<char>(to), " ");
      }
      text += "|";
    }
    return text;
  };
  CHECK(rows(8) == "abcdef>X X>$ .|abcdef>Y Y>Z Z>$ |");  // the complete prompt
  CHECK(rows(5) == "def>X X>$ .|def>Y Y>Z Z>$ |");
  CHECK(rows(2) == "f>X X>$ |f>Y Y>Z |");  // one token of the prompt remains
}

TEST_CASE("`lathe prepare` prepares preferences, and keys that do not fit them are refused",
          "[preferences]") {
  const TempFolder f;
  write_file(f / "pairs.jsonl", many_pairs(20));
  const auto prepare = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"prepare",     "pairs.jsonl", "--format",
                                  "preferences", "--out",       "pairs"};
    args.insert(args.end(), more.begin(), more.end());
    return lathe_in(f, args);
  };

  for (const auto& bad : std::vector<std::vector<std::string>>{
           {"--field", "x"}, {"--dedup-lines"}, {"--chat-template", "chatml"}}) {
    INFO(bad[0]);
    CHECK(prepare(bad).code == 2);
    CHECK(!fs::exists(f / "pairs"));
  }

  REQUIRE(prepare({}).code == 0);
  CHECK_THAT(lathe_in(f, {"inspect", "pairs"}).out,
             ContainsSubstring("19 for training, 1 for validation"));
  CHECK(lathe_in(f, {"verify", "pairs"}).code == 0);

  // Sources of a mixture can't be preferences.
  const Finished mixed = lathe_in(
      f, {"prepare", "--source", "a=pairs.jsonl", "--format", "preferences", "--out", "mixed"});
  CHECK(mixed.code == 2);
  CHECK(!fs::exists(f / "mixed"));

  for (const DataConfig& bad : {DataConfig{.dir = (f / "pairs").string(), .documents = "separate"},
                                DataConfig{.dir = (f / "pairs").string(), .folds = 2}}) {
    Exit code = Exit::done;
    try {
      open_data(bad);
    } catch (const Error& e) {
      code = e.code();
    }
    CHECK(code == Exit::usage);
  }
}

}  // namespace
