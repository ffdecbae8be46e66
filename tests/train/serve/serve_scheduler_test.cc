// Tests of the scheduler of `lathe serve`: texts may join and leave a batch at any time, and each
// text gets the tokens that `generate` produces for it alone.
#include <ATen/ops/full.h>

#include <cmath>
#include <map>

#include "tests/train/serve/served.h"
#include "train/serve/scheduler.h"

namespace {

using namespace lathe;
using lathe::test::generated;
using lathe::test::scheduler_options;
using lathe::test::served_context;
using lathe::test::served_model;

constexpr auto never = Clock::time_point::max();

/// Stores the tokens, scores and ends that the scheduler reports. After `drop_after` tokens of a
/// text, the request is cancelled. After `stop_after` tokens of a text, that text is stopped.
struct Collected : TextReceiver {
  std::map<size_t, std::vector<int64_t>> ids;
  std::map<size_t, std::vector<double>> log_probabilities, of_prompt;
  std::map<size_t, TextEnd> ends;
  std::string why;
  bool is_dropped = false;
  size_t drop_after = SIZE_MAX, stop_after = SIZE_MAX;

  void on_prompt(size_t text, size_t position, const TokenScore& score) override {
    CHECK(position == of_prompt[text].size() + 1);
    of_prompt[text].push_back(score.log_probability);
  }
  bool on_token(size_t text, const TokenScore& score) override {
    CHECK(!ends.contains(text));
    ids[text].push_back(score.id);
    log_probabilities[text].push_back(score.log_probability);
    is_dropped = ids[text].size() >= drop_after;
    return ids[text].size() < stop_after;
  }
  void on_end(size_t text, TextEnd end, const std::string& message) override {
    CHECK(!ends.contains(text));
    ends[text] = end;
    why = message;
  }
  bool is_cancelled() const override { return is_dropped; }
};

std::vector<int64_t> prompt_of_length(int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((17 * i + 5 * length) % 256);
  return ids;
}

TEST_CASE(
    "texts that join and leave a batch get the tokens that generate produces for each text alone",
    "[serve_scheduler]") {
  const std::vector<Sampling> samplings{
      {.temperature = 0},
      {.temperature = 1.2, .seed = 7},
      {.top_k = 5, .seed = 8},
      {.top_p = 0.7, .seed = 9},
      {.temperature = 1, .min_p = 0.1, .repetition_penalty = 1.3}};
  struct Asked {
    std::vector<int64_t> prompt;
    Sampling sampling;
    int64_t tokens, n;
    std::shared_ptr<Collected> collected = std::make_shared<Collected>();
  };
  std::vector<Asked> all;
  for (int64_t i = 0; i < 15; ++i) {
    all.push_back({.prompt = prompt_of_length(1 + 3 * i % 29),
                   .sampling = samplings[static_cast<size_t>(i) % samplings.size()],
                   .tokens = 1 + 7 * i % 19,
                   .n = 1 + i % 3});
  }

  // A request is submitted before every second step, and the batch has at most three texts.
  Scheduler scheduler(served_model(), scheduler_options(3, 64));
  size_t sent = 0, calls = 0;
  scheduler.run(
      [&] {
        if (calls++ % 2 == 0 && sent < all.size()) {
          const Asked& a = all[sent++];
          std::vector<ServedText> texts;
          for (int64_t j = 0; j < a.n; ++j) {
            texts.push_back({.ids = a.prompt,
                             .sampling = a.sampling,
                             .index = static_cast<uint64_t>(j),
                             .max_tokens = a.tokens,
                             .scores = true});
          }
          CHECK(scheduler.submit(texts, a.collected, never) == Scheduler::Submitted::accepted);
        }
        return sent == all.size();
      },
      60);

  size_t different = 0;
  for (const Asked& a : all) {
    const auto wanted = generated(a.prompt, a.sampling, a.tokens, a.n);
    for (int64_t j = 0; j < a.n; ++j) {
      const auto text = static_cast<size_t>(j);
      CHECK(a.collected->ids[text] == wanted[text]);
      CHECK(a.collected->ends[text] == TextEnd::length);
      different += wanted[text] != wanted[0] ? 1 : 0;
    }
  }
  // The comparison would notice swapped texts, because texts of one prompt differ.
  CHECK(different > 3);
}

TEST_CASE("generated tokens get the same scores when they are part of a prompt",
          "[serve_scheduler]") {
  const std::vector<int64_t> prompt = prompt_of_length(4);
  GenerateOptions options{
      .context = served_context, .tokens = 40, .sampling = {.temperature = 1, .seed = 3}};
  options.log_probabilities = true;
  std::vector<double> wanted;
  const auto ids = generate(served_model(), {prompt}, options, [&](const GeneratedToken& t) {
    wanted.push_back(t.log_probability);
    return true;
  });

  ServedText text{.ids = prompt, .max_tokens = 0, .scores = true, .scores_prompt = true};
  text.ids.insert(text.ids.end(), ids[0].begin(), ids[0].end());
  const auto collected = std::make_shared<Collected>();
  Scheduler scheduler(served_model(), scheduler_options(2, 4));
  scheduler.submit({text}, collected, never);
  scheduler.run([] { return true; }, 60);

  std::vector<double>& scores = collected->of_prompt[0];
  REQUIRE(scores.size() == 43);
  CHECK(std::vector<double>(scores.begin() + 3, scores.end()) == wanted);
  CHECK(collected->ids[0].empty());
  CHECK(collected->ends[0] == TextEnd::length);

  // Compare with LibTorch's log_softmax over the logits of one forward pass.
  const NoGrad no_grad;
  const at::Tensor logits = served_model()(at::tensor(text.ids, at::kLong).unsqueeze(0)).data()[0];
  const at::Tensor log_p = logits.to(at::kDouble).log_softmax(-1);
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    CHECK(std::abs(scores[i] - log_p[at][text.ids[i + 1]].item<double>()) < 1e-9);
  }
}

TEST_CASE("score_token returns the likeliest tokens in order", "[serve_scheduler]") {
  const at::Tensor logits = at::tensor({1.0, 3.0, 2.0, 3.0, -1.0}, at::kDouble);
  const at::Tensor log_p = logits.log_softmax(0);
  const TokenScore score = score_token(logits, 4, 3);
  CHECK(score.id == 4);
  CHECK(score.log_probability == Approx(log_p[4].item<double>()));
  REQUIRE(score.top.size() == 3);
  CHECK(score.top[0].first == 1);
  CHECK(score.top[1].first == 3);
  CHECK(score.top[2].first == 2);
  CHECK(score.top[2].second == Approx(log_p[2].item<double>()));
  CHECK(score_token(logits, 0, 0).top.empty());
  CHECK(score_token(logits, 0, 20).top.size() == 5);
}

TEST_CASE(
    "requests that are cancelled, late, stopped or refused by a full queue do not affect other "
    "requests",
    "[serve_scheduler]") {
  const std::vector<int64_t> prompt = prompt_of_length(5);
  const ServedText text{.ids = prompt, .sampling = {.temperature = 0}, .max_tokens = 20};
  const auto make = [] { return std::make_shared<Collected>(); };
  const auto other = make(), dropped = make(), stopped = make(), late = make(), waits = make(),
             gone = make(), refused = make();
  dropped->drop_after = 3;
  stopped->stop_after = 4;
  gone->is_dropped = true;

  Scheduler scheduler(served_model(), scheduler_options(3, 6));
  for (const auto& one : {other, dropped, stopped, waits, gone})
    CHECK(scheduler.submit({text}, one, never) == Scheduler::Submitted::accepted);
  scheduler.submit({text, text}, late, Clock::now());
  CHECK(scheduler.submit({text}, refused, never) == Scheduler::Submitted::full);
  int calls = 0;
  scheduler.run([&] { return ++calls > 10; }, 60);
  CHECK(scheduler.submit({text}, refused, never) == Scheduler::Submitted::stopping);

  const auto wanted = generated(prompt, text.sampling, 20)[0];
  CHECK(other->ids[0] == wanted);
  CHECK(other->ends[0] == TextEnd::length);
  CHECK(waits->ids[0] == wanted);
  CHECK(dropped->ids[0] == std::vector<int64_t>(wanted.begin(), wanted.begin() + 3));
  CHECK(dropped->ends[0] == TextEnd::cancelled);
  CHECK(stopped->ids[0] == std::vector<int64_t>(wanted.begin(), wanted.begin() + 4));
  CHECK(stopped->ends[0] == TextEnd::stop);
  CHECK(late->ids[0].empty());
  CHECK((late->ends == std::map<size_t, TextEnd>{{0, TextEnd::late}, {1, TextEnd::late}}));
  CHECK(gone->ends[0] == TextEnd::cancelled);
  CHECK(refused->ends.empty());
}

TEST_CASE("a request that fits into the batch takes no slot of the queue", "[serve_scheduler]") {
  // The batch has two rows and the queue has one slot, so three requests are accepted in every
  // round.
  const ServedText text{.ids = {1, 2}, .sampling = {.temperature = 0}, .max_tokens = 4};
  const ServedText no_tokens{.ids = {1, 2}, .max_tokens = 0};
  Scheduler scheduler(served_model(), scheduler_options(2, 1));
  int round = 0;
  std::vector<std::shared_ptr<Collected>> all;
  const auto stops = [&] {
    if (!std::all_of(all.begin(), all.end(), [](const auto& one) { return one->ends.size() == 1; }))
      return false;
    all.clear();
    for (int i = 0; i < 4 && round < 3; ++i) {
      all.push_back(std::make_shared<Collected>());
      const auto submitted = scheduler.submit({round == 1 ? no_tokens : text}, all.back(), never);
      CHECK(submitted == (i < 3 ? Scheduler::Submitted::accepted : Scheduler::Submitted::full));
      if (submitted == Scheduler::Submitted::full) all.pop_back();
    }
    return ++round > 3;
  };
  scheduler.run(stops, 60);
  CHECK(round == 4);
}

TEST_CASE("a scheduler that stops without a grace period ends all texts", "[serve_scheduler]") {
  const ServedText text{.ids = {1, 2}, .max_tokens = 30};
  const auto runs = std::make_shared<Collected>(), waits = std::make_shared<Collected>();
  Scheduler scheduler(served_model(), scheduler_options(1, 6));
  scheduler.submit({text, text}, runs, never);
  scheduler.submit({text}, waits, never);
  int calls = 0;
  scheduler.run([&] { return ++calls > 3; }, -1);
  CHECK(runs->ids[0].size() == 3);
  CHECK((runs->ends == std::map<size_t, TextEnd>{{0, TextEnd::shutdown}, {1, TextEnd::shutdown}}));
  CHECK((waits->ends == std::map<size_t, TextEnd>{{0, TextEnd::shutdown}}));
}

/// A model whose logits are NaN at each position whose token is 13.
struct UnluckyModel {
  Variable operator()(const at::Tensor& ids) const {
    const at::Tensor is_bad = ids.eq(13).unsqueeze(-1).expand({ids.size(0), ids.size(1), 20});
    return Variable(at::full(is_bad.sizes(), 1.0).masked_fill(is_bad, std::nan("")));
  }
  void visit(Visit&) {}
};

TEST_CASE("a text whose logits are not finite fails, and later texts are served",
          "[serve_scheduler]") {
  const lathe::detail::ModelOf<UnluckyModel> model({});
  Scheduler scheduler(model, scheduler_options(2, 6));
  const auto bad = std::make_shared<Collected>(), good = std::make_shared<Collected>();
  scheduler.submit({{.ids = {13}, .max_tokens = 3}}, bad, never);
  int calls = 0;
  scheduler.run(
      [&] {
        if (++calls == 2)
          scheduler.submit({{.ids = {1}, .sampling = {.temperature = 0}, .max_tokens = 3}}, good,
                           never);
        return calls > 3;
      },
      60);
  CHECK(bad->ends[0] == TextEnd::failed);
  CHECK_THAT(bad->why, ContainsSubstring("not finite"));
  CHECK(good->ids[0] == std::vector<int64_t>{0, 0, 0});
}

TEST_CASE(
    "a text whose logits are not finite does not end other texts, even if its prompt is scored",
    "[serve_scheduler]") {
  const lathe::detail::ModelOf<UnluckyModel> model({});
  for (const bool scores : {false, true}) {
    Scheduler scheduler(model, scheduler_options(2, 6));
    const auto bad = std::make_shared<Collected>(), good = std::make_shared<Collected>();
    scheduler.submit({{.ids = {1}, .sampling = {.temperature = 0}, .max_tokens = 3}}, good, never);
    std::vector<int64_t> ids{1, 13};
    if (scores) ids.push_back(2);
    scheduler.submit({{.ids = ids, .max_tokens = 3, .scores = scores, .scores_prompt = scores}},
                     bad, never);
    int calls = 0;
    scheduler.run([&] { return ++calls > 5; }, 60);
    CHECK(bad->ends[0] == TextEnd::failed);
    CHECK_THAT(bad->why, ContainsSubstring("not finite"));
    CHECK(bad->of_prompt[0].size() == (scores ? 1 : 0));
    CHECK(good->ends[0] == TextEnd::length);
    CHECK(good->ids[0] == std::vector<int64_t>{0, 0, 0});
  }
}

}  // namespace
