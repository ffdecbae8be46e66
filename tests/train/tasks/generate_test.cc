// Tests of text generation: sampling a token from logits, the key/value cache, stops, prompts and
// conversations.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <memory>

#include "core/kernels/gemm.h"
#include "data/tokenizers/chat_template.h"
#include "nn/init.h"
#include "nn/layers/cache.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "train/tasks/generate.h"

namespace {

using namespace lathe;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("logits that are not finite are refused with any sampling options", "[generate]") {
  const std::vector<std::vector<double>> bad{
      {0, nan, 1},  {nan, nan, nan},    {0, inf, 1}, {inf, inf, inf},
      {0, -inf, 1}, {-inf, -inf, -inf}, {nan}};

  for (const auto& values : bad) {
    const auto first =
        std::find_if_not(values.begin(), values.end(), [](double x) { return std::isfinite(x); }) -
        values.begin();
    const at::Tensor logits = at::tensor(at::ArrayRef<double>(values));
    for (const double temperature : {0.0, 0.8}) {
      for (const int64_t top_k : {0, 1, 2, 100}) {
        for (const double top_p : {1.0, 0.5, 1e-300, 0.0}) {
          const Sampling s{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          Exit code = Exit::done;
          try {
            sample_token(logits, s, 0.5);
          } catch (const Error& e) {
            code = e.code();
            CHECK_THAT(e.what(),
                       ContainsSubstring("logits") && ContainsSubstring(str("for token ", first)));
          }
          CHECK(code == Exit::diverged);
        }
      }
    }
  }
}

TEST_CASE("any sampling options pick a valid token from finite logits", "[generate]") {
  const std::vector<at::Tensor> all{
      at::tensor({3.0, 1.0, 2.0}, at::kDouble), at::full({5}, 1e300, at::kDouble),
      at::tensor({-1e308, 1e308}, at::kDouble), at::full({1}, 7, at::kFloat)};
  for (const at::Tensor& logits : all) {
    for (const double temperature : {0.0, 1e-320, 0.8, 1e300, inf}) {
      for (const int64_t top_k : {-1, 0, 1, 100}) {
        for (const double top_p : {1.0, 0.5, 1e-300, 0.0, -1.0, nan}) {
          for (const double draw : {0.0, 1e-9, 0.5, 1.0}) {
            const int64_t id = sample_token(
                logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p}, draw);
            CHECK((id >= 0 && id < logits.numel()));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "min_p keeps tokens that have at least this fraction of the likeliest token's probability",
    "[generate]") {
  const at::Tensor logits =
      at::tensor({0.0, std::log(0.5), std::log(0.25), std::log(0.1)}, at::kDouble);
  const auto reached = [&](const Sampling& s) {
    std::set<int64_t> ids;
    for (int i = 0; i < 200; ++i) ids.insert(sample_token(logits, s, (i + 0.5) / 200));
    return ids;
  };
  CHECK(reached({.temperature = 1}) == std::set<int64_t>{0, 1, 2, 3});
  CHECK(reached({.temperature = 1, .min_p = 0.2}) == std::set<int64_t>{0, 1, 2});
  CHECK(reached({.temperature = 1, .min_p = 0.5}) == std::set<int64_t>{0, 1});
  CHECK(reached({.temperature = 1, .min_p = 1}) == std::set<int64_t>{0});
  CHECK(reached({.temperature = 2, .min_p = 0.5}) ==
        std::set<int64_t>{0, 1, 2});  // min_p is applied to the probabilities at this temperature
  CHECK(reached({.temperature = 1, .top_k = 2, .min_p = 0.2}) == std::set<int64_t>{0, 1});
  // Probabilities are normalized over the kept tokens. If these have 1 and 0.5 before
  // normalization, the likelier token has two thirds.
  CHECK(sample_token(logits, {.temperature = 1, .min_p = 0.5}, 0.66) == 0);
  CHECK(sample_token(logits, {.temperature = 1, .min_p = 0.5}, 0.67) == 1);
}

template <class M, class C>
std::unique_ptr<Model> model_of(const C& config) {
  M module(config);
  initialize(module, Init::gpt2, /*seed=*/3, config.n_layer);
  for (const auto& p : parameters(module))
    p.parameter.data().mul_(6);  // weights so large that the generated tokens depend on the context
  return std::make_unique<lathe::detail::ModelOf<M>>(std::move(module));
}

struct Tested {
  std::string name;
  std::unique_ptr<Model> model;
  int64_t context;
};

/// Returns models whose contexts are longer than a block of attention, and whose matrices are wider
/// than a block of a matrix product.
std::vector<Tested> tested() {
  std::vector<Tested> all;
  GPTConfig g;
  g.n_layer = 2;
  g.n_head = 3;
  g.n_embd = 48;
  g.block_size = 72;
  g.vocab_size = 97;
  all.push_back({.name = "gpt", .model = model_of<GPT>(g), .context = 72});

  LlamaConfig l;
  l.n_layer = 2;
  l.n_head = 6;
  l.n_kv_head = 2;
  l.n_embd = 48;
  l.n_inner = 1000;
  l.block_size = 72;
  l.vocab_size = 97;
  l.qkv_bias = l.qk_norm = true;
  all.push_back({.name = "llama", .model = model_of<Llama>(l), .context = 72});

  l.n_kv_head = 1;
  l.n_head = 10;
  l.head_dim = 10;
  l.qk_norm = false;
  l.tie_weights = false;
  all.push_back({.name = "llama of one head of keys", .model = model_of<Llama>(l), .context = 72});

  // Test windows that are smaller and larger than a block of attention, layers without positions,
  // and softcaps.
  l.n_kv_head = 2;
  l.n_head = 6;
  l.head_dim = 0;
  l.qk_norm = true;
  l.n_layer = 3;
  l.sliding_window = 5;
  l.window_layers = "110";
  l.rope_layers = "101";
  l.rope_local_theta = 100;
  l.attention_softcap = 20;
  l.query_pre_attn_scalar = 5;
  l.norm_position = "both";
  l.activation = "gelu";
  all.push_back({.name = "llama with windows", .model = model_of<Llama>(l), .context = 72});
  l.sliding_window = 66;
  l.window_layers = "1";
  l.attention_softcap = 0;
  all.push_back({.name = "llama with a long window", .model = model_of<Llama>(l), .context = 72});
  return all;
}

using Texts = std::vector<std::vector<int64_t>>;
const Texts prompts{{5},
                    {1, 2, 3, 4, 5, 6, 7},
                    {96, 0, 13},
                    std::vector<int64_t>(70, 8),
                    std::vector<int64_t>(80, 9)};

/// Generates a continuation of each text. Returns their ids and log probabilities.
std::pair<Texts, std::vector<std::vector<double>>> write(const Model& model, const Texts& texts,
                                                         GenerateOptions w) {
  std::vector<std::vector<double>> p(texts.size());
  w.log_probabilities = true;
  auto ids = generate(model, texts, w, [&](const GeneratedToken& t) {
    p[static_cast<size_t>(t.text)].push_back(t.log_probability);
    return true;
  });
  return {ids, p};
}

TEST_CASE(
    "with and without the cache, tokens and log probabilities are bitwise equal, for every "
    "sampling, beyond the context and in a batch",
    "[generate]") {
  const std::vector<Sampling> samplings{
      {.temperature = 0},
      {.temperature = 1.2, .seed = 7},
      {.top_k = 5},
      {.top_p = 0.7},
      {.temperature = 1, .min_p = 0.1, .repetition_penalty = 1.3}};

  for (const Tested& t : tested()) {
    for (size_t i = 0; i < samplings.size(); ++i) {
      INFO(t.name << ", sampling " << i);
      GenerateOptions w{.context = t.context, .tokens = i == 0 ? 90 : 12, .sampling = samplings[i]};
      const auto [ids, p] = write(*t.model, prompts, w);
      w.cache = false;
      const auto [wanted, wanted_p] = write(*t.model, prompts, w);
      CHECK(ids == wanted);
      CHECK(p == wanted_p);
      // The text is not one token repeated.
      CHECK(std::set<int64_t>(ids[1].begin(), ids[1].end()).size() > 3);
    }

    // Text 0 is the same in a batch and alone.
    GenerateOptions w{.context = t.context, .tokens = 10};
    CHECK(write(*t.model, {prompts[0]}, w).second[0] == write(*t.model, prompts, w).second[0]);
    // The comparison must notice another prompt.
    CHECK(write(*t.model, {prompts[1]}, w).second[0] != write(*t.model, {prompts[2]}, w).second[0]);
  }
}

TEST_CASE("a cache knows the number of tokens that it holds of each text", "[generate]") {
  KeyValueCache cache(2, 10);
  KeyValueCache::Use(cache, {1}).commit(3);
  KeyValueCache::Use(cache, {0, 1}).commit(1);
  CHECK(cache.length(0) == 1);
  CHECK(cache.length(1) == 4);
  cache.truncate(1, 2);
  CHECK(cache.length(1) == 2);
  cache.truncate(1, 7);  // truncate() never makes a text longer
  CHECK(cache.length(1) == 2);
}

/// A model whose logits are the same at every position.
struct ConstantLogits {
  at::Tensor logits;

  Variable operator()(const at::Tensor& ids) const {
    return Variable(logits.expand({ids.size(0), ids.size(1), logits.numel()}));
  }
  void visit(Visit&) {}
};

TEST_CASE(
    "a repetition penalty makes tokens that are already in the text less likely, for either sign "
    "of their logits",
    "[generate]") {
  const auto written = [](const std::vector<double>& logits, double penalty) {
    const lathe::detail::ModelOf<ConstantLogits> model({at::tensor(logits, at::kDouble)});
    return write(
        model, {{0}},
        {.context = 8, .tokens = 3, .sampling = {.temperature = 0, .repetition_penalty = penalty}});
  };
  // A positive logit is divided by the penalty once, however often its token occurs in the text: 3,
  // 2, 1 become 1.5, 2, 1, and then 1.5, 1, 1.
  const std::vector<double> positive{3, 2, 1};
  CHECK(written(positive, 1).first == Texts{{0, 0, 0}});
  CHECK(written(positive, 2).first == Texts{{1, 0, 0}});

  // A negative logit is multiplied by the penalty: -1, -1.5, -3.5 become -2, -1.5, -3.5, and then
  // -2, -3, -3.5.
  const std::vector<double> negative{-1, -1.5, -3.5};
  CHECK(written(negative, 1).first == Texts{{0, 0, 0}});
  const auto [ids, log_probabilities] = written(negative, 2);
  CHECK(ids == Texts{{1, 0, 0}});

  // The reported log probability comes from the logits of the model, without the penalty.
  const at::Tensor wanted = at::tensor(negative, at::kDouble).log_softmax(0);
  CHECK(log_probabilities[0][0] == Approx(wanted[1].item<double>()));
}

TEST_CASE("in bfloat16 and without Lathe's kernels, the cache changes results only by rounding",
          "[generate]") {
  for (const Tested& t : tested()) {
    for (const bool kernels : {true, false}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        if (kernels && dtype == at::kFloat) continue;
        INFO(t.name << " in " << dtype << (kernels ? "" : ", ATen's kernels"));
        use_kernels(kernels);
        // Generate only two tokens for each text, so that rounding rarely changes a chosen token.
        GenerateOptions w{
            .context = t.context, .tokens = 2, .sampling = {.temperature = 0}, .compute = dtype};
        const auto [ids, p] = write(*t.model, {prompts[1], prompts[3]}, w);
        w.cache = false;
        const auto [wanted, wanted_p] = write(*t.model, {prompts[1], prompts[3]}, w);
        use_kernels(true);
        for (size_t i = 0; i < 2; ++i)
          CHECK(std::abs(p[i][1] - wanted_p[i][1]) < (dtype == at::kFloat ? 1e-4 : 0.3));
      }
    }
  }
}

TEST_CASE("a text that is stopped ends, and the other texts continue", "[generate]") {
  const auto all = tested();
  std::vector<int> count(3, 0);
  const auto ids = generate(*all[0].model, {prompts[0], prompts[1], prompts[2]},
                            {.context = 72, .tokens = 9}, [&](const GeneratedToken& t) {
                              CHECK(std::isnan(t.log_probability));
                              return ++count[static_cast<size_t>(t.text)] != 2 + t.text;
                            });
  CHECK(ids[0].size() == 2);
  CHECK(ids[1].size() == 3);
  CHECK(ids[2].size() == 4);
}

TEST_CASE("a stop text is found across tokens, and no part of it is shown", "[generate]") {
  const auto shown = [](const std::vector<std::string>& pieces, std::vector<std::string> stops) {
    StopMatcher s(std::move(stops));
    std::string out;
    for (const auto& piece : pieces) {
      if (s.stopped()) break;
      out += s.feed(piece);
    }
    return s.stopped() ? out + "|" : out + s.rest();
  };
  CHECK(shown({"ab", "cd"}, {}) == "abcd");
  CHECK(shown({"ab", "cd", "ef"}, {"bcde"}) == "a|");
  CHECK(shown({"ab", "cx", "ef"}, {"bcde"}) == "abcxef");
  CHECK(shown({"aaa", "ab"}, {"aab"}) == "aa|");
  CHECK(shown({"a", "\n", "\n", "b"}, {"\n\n"}) == "a|");
  CHECK(shown({"one two"}, {"two", "ne"}) == "o|");
  CHECK(shown({"one two"}, {"ne", "two"}) == "o|");
  CHECK(shown({"x"}, {"xyz"}) == "x");
  StopMatcher held({"stop"});
  CHECK(held.feed("go st") == "go ");
  CHECK(held.feed("ay") == "stay");
}

TEST_CASE(
    "conversations have the form of ChatML or Llama 3, and special tokens in messages are encoded "
    "as plain text",
    "[generate]") {
  const std::vector<ChatMessage> messages{{"system", "Be kind."}, {"user", "Hi <|im_end|>"}};
  const Tokenizer chatml = test::byte_tokenizer_with({"<|im_start|>", "<|im_end|>"});
  const ChatTemplate chat(chatml, "run", "");
  CHECK(chatml.decode(chat.encode_prompt(messages)) ==
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi "
        "<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  const auto ids = chat.encode_prompt(messages);
  CHECK(std::count(ids.begin(), ids.end(), chat.end()) == 2);
  const Tokenizer llama3 = test::byte_tokenizer_with(
      {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  CHECK(llama3.decode(ChatTemplate(llama3, "run", "").encode_prompt({{"user", "Hi"}})) ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_"
        "id|>assistant"
        "<|end_header_id|>\n\n");
  CHECK_THAT(error_of([] { ChatTemplate(Tokenizer::byte(), "runs/a", ""); }),
             ContainsSubstring("runs/a: ") && ContainsSubstring("<|im_end|>") &&
                 ContainsSubstring("<|eot_id|>"));
}

TEST_CASE(
    "lathe generate reads prompts from a file, samples, stops and prints JSON, and chat needs a "
    "template",
    "[generate]") {
  const test::TempFolder f(test::fast_folder());
  test::write_file(f / "text.txt", test::sample_text(6000));
  test::write_file(f / "prompts.txt", "the \n\nand the\r\n");
  const auto run = [&](std::vector<std::string> args) {
    return test::lathe_in(f, std::move(args));
  };
  REQUIRE(run({"prepare", "text.txt", "--out", "data", "--tokenizer", "byte"}).code == 0);
  test::write_file(
      f / "c.toml",
      "[model]\nkind = \"llama\"\nn_layer = 1\nn_head = 2\nn_kv_head = 1\nn_embd = 16\nblock_size "
      "= 16\n"
      "[data]\ndir = \"data\"\n[schedule]\nwarmup_steps = 0\n"
      "[train]\nsteps = 4\nbatch_size = 2\neval_interval = 0\nout_dir = \"run\"\nthreads = 1\n");
  REQUIRE(run({"train", "c.toml"}).code == 0);
  const auto out = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"generate", "run", "--tokens=30"});
    const test::Finished done = run(args);
    INFO(done.err);
    CHECK(done.code == 0);
    return done.out;
  };

  const std::string whole = out({"--prompt=the "});
  CHECK(whole.size() == 4 + 30 + 1);
  CHECK(out({"--prompt=the ", "--cache=false"}) == whole);
  const std::string stop = whole.substr(12, 3);
  CHECK(out({"--prompt=the ", "--stop=not there", "--stop=" + stop}) ==
        whole.substr(0, whole.find(stop, 4)) + "\n");

  const std::string two = out({"--prompt-file=prompts.txt", "--samples=2"});
  CHECK(two.starts_with(whole));
  size_t cuts = 0;
  for (size_t at = 0; (at = two.find("\n----\n", at)) != std::string::npos; ++at) ++cuts;
  CHECK(cuts >= 3);
  CHECK_THAT(two, ContainsSubstring("\n----\nand the"));

  // A byte-order mark at the beginning of a file is not part of its text.
  test::write_file(f / "a.txt", test::sample_text(300));
  test::write_file(f / "b.txt", "\xEF\xBB\xBF" + test::sample_text(300));
  const auto loss = [&](const char* file) {
    return parse_json(run({"eval", "run", file}).out, "", Exit::internal)["perplexity"];
  };
  CHECK(loss("a.txt") == loss("b.txt"));

  // The output has neither the bytes nor the tokens of a stop text. In this test, each token is one
  // byte.
  const std::string until = out({"--prompt=the ", "--stop=" + stop, "--logprobs=true"});
  CHECK(std::count(until.begin(), until.end(), '\n') ==
        static_cast<ptrdiff_t>(whole.find(stop, 4)) - 4);

  std::istringstream lines(out({"--prompt=the ", "--logprobs=true"}));
  std::string text;
  double least = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json j = parse_json(line, "", Exit::internal);
    text += static_cast<char>(j["id"].get<int>());
    least = std::min(least, j["logprob"].get<double>());
    CHECK(j["logprob"].get<double>() <= 0);
  }
  CHECK("the " + text + "\n" == whole);
  CHECK(least < -1);

  const auto refused = [&](std::vector<std::string> args, int code) {
    const test::Finished done = run(args);
    CHECK(done.code == code);
    return done.err;
  };
  CHECK_THAT(refused({"generate", "run", "--stop="}, 2),
             ContainsSubstring("--stop") && ContainsSubstring("empty"));
  CHECK_THAT(refused({"generate", "run", "--prompt=a", "--prompt-file=prompts.txt"}, 2),
             ContainsSubstring("--prompt ") && ContainsSubstring("--prompt-file"));
  CHECK_THAT(refused({"generate", "run", "--seed=1", "--seed=2"}, 2),
             ContainsSubstring("--seed") && ContainsSubstring("2 times"));
  CHECK_THAT(refused({"chat", "run"}, 2), ContainsSubstring("run: ") &&
                                              ContainsSubstring("<|im_end|>") &&
                                              ContainsSubstring("<|eot_id|>"));
}

}  // namespace
