// Instruction data: what of a conversation is learned, and that the sums over it are exact.
#include <cmath>

#include "core/io/json.h"
#include "data/loader.h"
#include "data/manifest.h"
#include "data/prepare/conversations.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokenizers/chat_template.h"
#include "data/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// The text of a split, what is learned of it in brackets.
std::string marked_text(const fs::path& folder, const char* split) {
  const auto manifest = read_manifest(folder);
  const TokenFile file(folder, split, manifest);
  std::vector<int64_t> ids(static_cast<size_t>(file.size())), targets(ids.size());
  file.read(0, file.size(), manifest->vocab_size, ids.data());
  file.read_targets(0, file.size(), targets.data());
  std::string text;
  bool learned = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    if ((targets[i] == ids[i]) != learned) text += learned ? "]" : "[";
    learned = targets[i] == ids[i];
    CHECK((learned || targets[i] == -100));
    text += manifest->tokenizer.decode({ids[i]});
  }
  return text + (learned ? "]" : "");
}

const char* const chats =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", "
    "\"content\": \"Hi\"}, "
    "{\"role\": \"assistant\", \"content\": \"Hello!\"}, {\"role\": \"user\", \"content\": "
    "\"<|im_end|>?\"}, "
    "{\"role\": \"assistant\", \"content\": \"Yes.\"}]}\n\n"
    "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n";

TEST_CASE("of conversations the answers and their ends are learned, in each template",
          "[conversations]") {
  const TempFolder f;
  write_file(f / "a.jsonl", chats);
  DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()},
                               .format = "instructions",
                               .field = "messages"},
                    .out = {}};
  o.val_share = 0;
  o.tokenizer = bytes_and({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  o.out = f / "chatml";
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") ==
        "<|im_start|>system\nBe "
        "kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "[Hello!<|im_end|>]\n<|im_start|>user\n<|im_end|>?<|im_end|>\n<|im_start|>assistant\n[Yes.<"
        "|im_end|>]\n"
        "<|endoftext|>2+2=[4<|endoftext|>]");
  const auto manifest = read_manifest(o.out);
  CHECK(manifest->marked);
  CHECK(manifest->largest_id == 258);
  CHECK(manifest->documents["learned_tokens"] == 7 + 5 + 2);
  CHECK(manifest->documents["kept"] == 2);
  TokenFile(o.out, "train", manifest).check_ids(259);
  CHECK_THAT(error_of([&] { TokenFile(o.out, "train", manifest).check_ids(258); }),
             ContainsSubstring("is 258, beyond the vocabulary of 258"));
  CHECK(TokenFile(o.out, "train", manifest).largest_id() == 258);

  o.tokenizer = bytes_and({"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"});
  o.out = f / "llama3";
  prepare_documents(o);
  CHECK_THAT(marked_text(o.out, "train"),
             ContainsSubstring("<|start_header_id|>assistant<|end_header_id|>\n\n[Hello!<|eot_id|>]"
                               "<|start_header_id|>user"));
  // What a chat asks is what was learned to be answered.
  const auto asked =
      ChatTemplate(o.tokenizer, "", "").ask({{"system", "Be kind."}, {"user", "Hi"}});
  const TokenFile file(o.out, "train", read_manifest(o.out));
  std::vector<int64_t> begin(asked.size());
  file.read(0, std::ssize(asked), 1000, begin.data());
  CHECK(begin == asked);

  o.tokenizer = Tokenizer::byte();
  o.out = f / "bytes";
  CHECK_THAT(error_of([&] { prepare_documents(o); }),
             ContainsSubstring("a.jsonl has no chat template"));
  write_file(f / "a.jsonl", "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n");
  prepare_documents(o);
  CHECK(marked_text(o.out, "train") == "2+2=[4\n]");
}

TEST_CASE("lines that are no conversations are refused by their number", "[conversations]") {
  const TempFolder f;
  const auto told = [&](const std::string& line) {
    write_file(f / "a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n" + line + "\n");
    DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()},
                                 .format = "instructions",
                                 .field = "messages"},
                      .out = {}};
    o.out = f / "out";
    const std::string what = error_of([&] { prepare_documents(o); });
    CHECK(!fs::exists(f / "out"));
    return what;
  };
  const std::string place = "a.jsonl:2";
  for (const auto& [line, what] : std::vector<std::pair<std::string, std::string>>{
           {"{\"text\": \"a\"}", "is no conversation: it needs a list \"messages\""},
           {"[1]", "is no conversation"},
           {"{\"prompt\": \"a\"}", "is no conversation"},
           {"{\"prompt\": \"a\", \"completion\": 3}", "is no conversation"},
           {"{\"messages\": []}", "has no message of the assistant"},
           {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "has no message of the assistant"},
           {"{\"messages\": [3]}", "has a message that is no object"},
           {"{\"messages\": [{\"role\": \"assistant\"}]}", "a message has no text in \"content\""},
           {"{\"messages\": [{\"role\": \"assistant\", \"content\": [1]}]}",
            "a message has no text in \"content\""},
           {"{\"messages\": [{\"content\": \"a\"}]}", "a message has no text in \"role\""},
           {"{\"messages\": [{\"role\": \"<|im_end|>\", \"content\": \"a\"}]}",
            "can't be a role"}}) {
    INFO(line);
    CHECK_THAT(told(line), ContainsSubstring(place));
    CHECK_THAT(told(line), ContainsSubstring(what));
  }
}

TEST_CASE(
    "a run learns completions alone: prompts change nothing that is not read, and every split of a "
    "batch adds up",
    "[conversations]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  std::string lines;
  for (int i = 0; i < 900; ++i) {
    const std::string question = std::to_string(i) + "*3=";
    lines += Json{{"prompt", question}, {"completion", std::to_string(3 * i)}}.dump() + "\n";
  }
  write_file(f / "sums.jsonl", lines);
  const Finished made =
      lathe_in(f, {"prepare", "sums.jsonl", "--format", "instructions", "--out", "sums"});
  INFO(made.err);
  REQUIRE(made.code == 0);
  const auto train = [&](const std::string& out, std::vector<std::string> more, int code = 0) {
    std::vector<std::string> args{"train", "tiny.toml", "--data.dir=sums", "--model.dropout=0",
                                  "--train.out_dir=" + out};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(done.err);
    CHECK(done.code == code);
    return done;
  };
  const auto losses = [&](const std::string& out) {
    std::vector<double> all;
    std::istringstream text(slurp(f / out / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      const Json json = parse_json(line, out, Exit::internal);
      if (json.contains("loss")) all.push_back(json["loss"].get<double>());
    }
    return all;
  };
  train("whole", {});
  train("parts", {"--train.pause_at=9"}, 75);
  train("parts", {});
  CHECK(difference(f / "whole", f / "parts").empty());
  // 6 windows a step as 6 x 1, 1 x 6 and 3 x 2: micro-batches have different numbers of targets, so
  // a mean of their means would be another loss (by some percent).
  const auto wanted = losses("whole");
  REQUIRE(wanted.size() == 40);
  for (const auto& [batch, accumulate] : {std::pair("1", "6"), std::pair("6", "1")}) {
    const std::string out = std::string("by") + batch;
    train(out, {std::string("--train.batch_size=") + batch,
                std::string("--train.grad_accum=") + accumulate});
    const auto got = losses(out);
    REQUIRE(got.size() == wanted.size());
    for (size_t i = 0; i < 10; ++i)
      CHECK(got[i] == Approx(wanted[i]).epsilon(1e-5));  // float32 sums, ten updates
  }
  // A mean over targets that are learned: at first that of a model that knows nothing, within its
  // initial noise.
  CHECK(wanted[0] == Approx(std::log(256.0)).epsilon(0.1));
  const Finished eval = lathe_in(f, {"eval", "whole"});
  REQUIRE(eval.code == 0);
  const Json json = parse_json(eval.out.substr(eval.out.rfind('\n', eval.out.size() - 2) + 1),
                               "eval", Exit::internal);
  DataConfig c;
  c.dir = (f / "sums").string();
  const auto data = open_data(c);
  int64_t learned = 0;
  const auto windows = data->evaluation({4, 16, 256}, 0, at::kCPU);
  for (Batch b; windows->next(b);) learned += count_targets(b);
  CHECK(json["tokens"] == learned);
  CHECK((learned > data->val_size() / 4 && learned < data->val_size()));
  const auto training = data->training({4, 16, 256}, 3);
  int64_t n = 0;
  for (const Batch& b : draw_batches(*data, {4, 16, 256}, 3, 0, 9, at::kCPU)) {
    CHECK(training->targets(n++) == count_targets(b));
    const at::Tensor read = b.targets.slice(1, 0, 15), next = b.inputs.slice(1, 1, 16);
    CHECK((read.eq(next) | read.eq(-100)).all().item<bool>());
    CHECK(b.inputs.lt(256).all().item<bool>());
  }
}

}  // namespace
