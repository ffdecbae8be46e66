// Compares the losses of texts, and the likeliest endings, with sums of the model's log
// probabilities.
#include "train/tasks/text_score.h"

#include <cmath>

#include "core/io/json.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

constexpr int64_t context = 12;

std::unique_ptr<Model> small_model(int64_t vocabulary) {
  const ModelKind& kind = *find_model_kind("gpt");
  AnyConfig config = kind.config;
  const std::pair<const char*, int64_t> keys[]{{"n_layer", 1},
                                               {"n_head", 2},
                                               {"n_embd", 16},
                                               {"block_size", context},
                                               {"vocab_size", vocabulary}};
  for (const auto& [key, value] : keys) *config.find<int64_t>(key) = value;
  auto model = make_model(kind, config, {}, 3);
  torch::manual_seed(4);
  for (const auto& p : parameters(*model))
    p.parameter.data().copy_(torch::randn(p.parameter.sizes()) * 0.5);
  return model;
}

/// Returns the model's log P(ids[i] | ids[from], ..., ids[i - 1]).
double log_probability(const Model& model, const std::vector<int64_t>& ids, size_t from, size_t i) {
  const at::Tensor in = torch::tensor(std::vector<int64_t>(ids.begin() + static_cast<int64_t>(from),
                                                           ids.begin() + static_cast<int64_t>(i)));
  const NoGrad no_grad;
  const at::Tensor logits = model(in.unsqueeze(0)).data()[0][-1];
  return logits.to(at::kDouble).log_softmax(0)[ids[i]].item<double>();
}

TEST_CASE("each token of a text is scored once, given the tokens before it in its window",
          "[text_score]") {
  const Tokenizer bytes = Tokenizer::byte();
  const auto model = small_model(256);
  const std::string text = "the lathe turns, and what it cuts is round";
  const std::vector<int64_t> ids = bytes.encode(text);
  for (const int64_t stride : {0, 1, 5, 11, 12}) {
    for (const int64_t batch : {1, 3, 100}) {
      const int64_t step = stride == 0 ? context : stride;
      double wanted = 0;
      size_t begin = 0;
      for (size_t i = 1; i < ids.size(); ++i) {
        if (i - begin > context) begin += static_cast<size_t>(step);
        wanted -= log_probability(*model, ids, begin, i);
      }
      const TextScore s = score_text({*model, bytes, context, stride, batch}, text);
      INFO("stride " << stride << ", " << batch << " at a time");
      CHECK(s.tokens == std::ssize(text) - 1);
      CHECK(s.bytes == s.tokens);
      CHECK(s.loss == Approx(wanted).epsilon(1e-5));  // scores are added in float32
    }
  }
  CHECK(score_text({*model, bytes, context}, "a").tokens == 0);
  CHECK(score_text({*model, bytes, context}, "").bytes == 0);
}

TEST_CASE(
    "if a token that ends documents precedes the text, the first token of the text is scored as "
    "well",
    "[text_score]") {
  const Tokenizer bpe = byte_tokenizer_with({"<|endoftext|>"});
  const auto model = small_model(257);
  // The text is encoded as plain characters, not as the special token.
  const std::string text = "<|endoftext|>";
  const TextScore s = score_text({*model, bpe, context}, text);
  CHECK(s.tokens == 13);
  CHECK(s.bytes == 13);
  std::vector<int64_t> ids{256};
  for (const char c : text) ids.push_back(c);
  double wanted = 0;
  for (size_t i = 1; i < ids.size(); ++i)
    wanted -= log_probability(*model, ids, i > context ? context : 0, i);
  CHECK(s.loss == Approx(wanted).epsilon(1e-5));
}

TEST_CASE("the ending with the highest probability is chosen, in total and per byte",
          "[text_score]") {
  const Tokenizer bytes = Tokenizer::byte();
  const auto model = small_model(256);
  torch::manual_seed(5);
  const auto word = [](int64_t length) {
    std::string text;
    for (int64_t i = 0; i < length; ++i)
      text += static_cast<char>('a' + torch::randint(26, {1}).item<int64_t>());
    return text;
  };

  int64_t differ = 0;
  for (int question = 0; question < 60; ++question) {
    MultipleChoice c{.context = word(1 + question % 9), .endings = {}, .label = 0};
    if (question % 3 == 0) c.context += " ";
    for (int64_t i = 0; i < 4; ++i) c.endings.push_back(word(1 + (question + 3 * i) % 7));
    if (question % 5 == 0) c.endings[1] = " " + c.endings[1];

    // A space is inserted between the context and an ending, unless the context ends with a space
    // or the ending begins with one.
    std::vector<double> whole, by_byte;
    for (const std::string& ending : c.endings) {
      const bool apart = c.context.empty() || c.context.back() == ' ' || ending[0] == ' ';
      const std::string behind = apart ? ending : " " + ending;
      std::vector<int64_t> ids = bytes.encode(c.context + behind);
      size_t first = c.context.size();
      if (ids.size() > context + 1) {
        const size_t cut = ids.size() - context - 1;
        ids.erase(ids.begin(), ids.begin() + static_cast<int64_t>(cut));
        first -= std::min(first, cut);
      }
      double sum = 0;
      for (size_t i = std::max<size_t>(first, 1); i < ids.size(); ++i)
        sum += log_probability(*model, ids, 0, i);
      whole.push_back(sum);
      by_byte.push_back(sum / static_cast<double>(ending.size()));
    }

    const auto best = [](const std::vector<double>& v) {
      return std::max_element(v.begin(), v.end()) - v.begin();
    };
    const Answer a = answer({.model = *model, .tokenizer = bytes, .context = context}, c);
    CHECK(a.by_total == best(whole));
    CHECK(a.by_byte == best(by_byte));
    differ += a.by_total != a.by_byte;
  }

  CHECK(differ > 10);
}

TEST_CASE("lathe eval reports the token that precedes a text", "[text_score]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::vector<std::string> train{"train", "tiny.toml", "--train.steps=2",
                                       "--train.eval_interval=0"};
  REQUIRE(lathe_in(f, {"tokenizer", "train", "text.txt", "--out", "t.json", "--vocab-size", "300"})
              .code == 0);
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "bpe", "--tokenizer", "t.json"}).code == 0);
  const auto evaluated = [&](const std::string& data) {
    std::vector<std::string> words = train;
    words.insert(words.end(), {"--data.dir=" + data, "--train.out_dir=" + data + "-run"});
    REQUIRE(lathe_in(f, words).code == 0);
    return lathe_in(f, {"eval", data + "-run", "text.txt"});
  };
  const Finished with = evaluated("bpe"), without = evaluated("data");
  CHECK(last_line(with)["begin_token"].is_number());
  const auto token = last_line(with)["begin_token"].get<int64_t>();
  CHECK_THAT(with.err, ContainsSubstring(str("token ", token, " ")));
  CHECK(!last_line(without).contains("begin_token"));
  CHECK_THAT(without.err, !ContainsSubstring("token "));
}

TEST_CASE("lathe eval scores files and questions, and refuses invalid ones", "[text_score]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=run"}).code == 0);
  write_file(f / "a.txt", sample_text(3000));
  write_file(f / "b.txt", sample_text(500));
  const auto last = [&](std::vector<std::string> more, int code = 0) {
    std::vector<std::string> args{"eval", "run"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(done.err);
    CHECK(done.code == code);
    return done.code == 0 ? parse_json(done.out, "eval", Exit::internal) : Json(done.err);
  };

  const Json both = last({"a.txt", "b.txt"}), a = last({"a.txt"});
  CHECK(both["files"].size() == 2);
  CHECK(both["files"][0]["loss"] == a["loss"]);
  CHECK(both["tokens"] == 2999 + 499);
  CHECK(a["bits_per_byte"].get<double>() ==
        Approx(a["loss"].get<double>() / std::log(2.0)));  // because each token is one byte
  CHECK(a["perplexity"].get<double>() == Approx(std::exp(a["loss"].get<double>())));
  CHECK(last({"a.txt", "--stride", "4"})["loss"] != a["loss"]);

  const std::string some = sample_text(200);
  const auto question = [&](size_t at, int label) {
    return Json{{"context", some.substr(at, 20)},
                {"endings", {some.substr(50, 3), some.substr(60, 7)}},
                {"label", label}}
        .dump();
  };
  write_file(f / "q.jsonl", question(0, 1) + "\n\n" + question(70, 0) + "\n");
  const Json answers = last({"--choices", "q.jsonl"});
  CHECK(answers["questions"] == 2);
  // If the labels are exchanged, the other answer of each question counts as correct.
  write_file(f / "q.jsonl", question(0, 0) + "\n" + question(70, 1) + "\n");
  const Json others = last({"--choices", "q.jsonl"});
  CHECK(answers["accuracy"].get<double>() + others["accuracy"].get<double>() == 1.0);

  // The beginning of a long context may be cut off, but an ending that is too long is an error.
  const auto of_length = [&](size_t length) {
    write_file(f / "long.jsonl", Json{{"context", some + " "},
                                      {"endings", {some.substr(0, length), some.substr(0, 1)}},
                                      {"label", 1}}
                                         .dump() +
                                     "\n");
    return last({"--choices", "long.jsonl"}, length > 16 ? 3 : 0);
  };
  CHECK(of_length(16)["questions"] == 1);
  CHECK_THAT(of_length(17).get<std::string>(),
             ContainsSubstring("17 tokens") && ContainsSubstring(" 16"));

  // Lines that are not valid questions are refused.
  const auto refusal = [&](const std::string& line) {
    write_file(f / "bad.jsonl",
               "{\"context\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 1}\n" + line);
    return last({"--choices", "bad.jsonl"}, 3).get<std::string>();
  };
  CHECK_THAT(refusal("{\"context\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}"),
             ContainsSubstring("bad.jsonl:2") && ContainsSubstring("label"));
  CHECK_THAT(refusal("{\"context\": \"a\", \"endings\": [\"b\"], \"label\": 0}"),
             ContainsSubstring("bad.jsonl:2") && ContainsSubstring("\"endings\"") &&
                 ContainsSubstring("two"));
  CHECK_THAT(refusal("{\"context\": \"a\", \"endings\": [\"b\", \"\"], \"label\": 0}"),
             ContainsSubstring("bad.jsonl:2") && ContainsSubstring("\"endings\"") &&
                 ContainsSubstring("non-empty"));
  CHECK_THAT(refusal("{\"endings\": [\"b\", \"c\"], \"label\": 0}"),
             ContainsSubstring("bad.jsonl:2") && ContainsSubstring("\"context\""));
  CHECK_THAT(refusal("x"), ContainsSubstring("bad.jsonl:2"));

  // Files and flags that can't be used are refused.
  CHECK_THAT(last({"--choices", "q.jsonl", "--stride", "4"}, 2).get<std::string>(),
             ContainsSubstring("--stride") && ContainsSubstring("questions"));
  write_file(f / "empty.jsonl",
             Json{{"context", ""}, {"endings", {"a", "e"}}, {"label", 1}}.dump());
  CHECK_THAT(last({"--choices", "empty.jsonl"}, 3).get<std::string>(),
             ContainsSubstring("no context"));
  write_file(f / "none.jsonl", "\n");
  CHECK_THAT(last({"--choices", "none.jsonl"}, 3).get<std::string>(),
             ContainsSubstring("none.jsonl") && ContainsSubstring("no questions"));
  write_file(f / "empty.txt", "");
  CHECK_THAT(last({"empty.txt"}, 3).get<std::string>(),
             ContainsSubstring("empty.txt") && ContainsSubstring(" 0 bytes"));
  CHECK_THAT(last({"nowhere.txt"}, 3).get<std::string>(), ContainsSubstring("nowhere.txt"));
  CHECK_THAT(last({"a.txt", "--data", "data"}, 2).get<std::string>(),
             ContainsSubstring("--data ") && ContainsSubstring("--choices"));
  CHECK_THAT(last({"--stride", "4"}, 2).get<std::string>(),
             ContainsSubstring("--stride") && ContainsSubstring("text files"));
  CHECK_THAT(last({"a.txt", "--stride", "17"}, 2).get<std::string>(),
             ContainsSubstring("--stride = 17"));
}

}  // namespace
