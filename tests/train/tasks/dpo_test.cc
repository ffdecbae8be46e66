// Tests of direct preference optimization: compares the loss with LibTorch's, and runs complete
// trainings.
#include "autograd/engine.h"
#include "core/io/json.h"
#include "nn/layers/linear.h"
#include "tests/support/process.h"
#include "tests/support/torch_oracle.h"
#include "tests/train/tasks/bigrams.h"
#include "train/store/checkpoint.h"
#include "train/tasks/frozen_forward.h"
#include "train/tasks/task.h"

namespace {

using namespace lathe;
using namespace lathe::test;

RunConfig dpo_config(double beta, double smoothing) {
  RunConfig config;
  config.schema().set(&config, "dpo.beta", beta, "");
  config.schema().set(&config, "dpo.label_smoothing", smoothing, "");
  return config;
}

TEST_CASE("the preference loss and its gradients equal LibTorch's", "[dpo]") {
  torch::manual_seed(5);
  constexpr int64_t v = 7, c = 3, t = 5, pairs = 4;
  const at::Tensor table = torch::randn({v, c}), head = torch::randn({v, c}),
                   reference_table = torch::randn({v, c}), reference_head = torch::randn({v, c});
  const at::Tensor inputs = torch::randint(v, {2 * pairs, t}, at::kLong);
  at::Tensor targets = torch::randint(v, {2 * pairs, t}, at::kLong);
  targets.slice(1, 0, 2).fill_(-100);
  targets[1].slice(0, 3).fill_(-100);
  targets[6].fill_(-100);  // an answer without targets

  for (const auto& [smoothing, softcap] : {std::pair{0.0, 0.0}, {0.2, 0.0}, {0.0, 0.8}}) {
    for (const bool headed : {true, false}) {
      const double beta = 0.7, divisor = 9, cap = softcap;
      auto reference = std::make_unique<Bigrams>(reference_table, reference_head, headed, false);
      reference->softcap = cap;
      const auto task = find_task("dpo")->of_run(dpo_config(beta, smoothing), std::move(reference));
      Bigrams model(table, head, headed);
      model.softcap = cap;
      const Batch batch{inputs, targets};
      CHECK(task->targets(batch) == pairs);
      const Variable loss = task->loss(model, batch, divisor);
      backward(loss);

      const at::Tensor a = table.clone().requires_grad_(), b = head.clone().requires_grad_();
      const auto log_likelihood = [&](const at::Tensor& of_table, const at::Tensor& of_head) {
        const at::Tensor logits = at::matmul(of_table.index({inputs}), of_head.t());
        const at::Tensor log_p = (cap > 0 ? cap * (logits / cap).tanh() : logits).log_softmax(-1);
        const at::Tensor picked = log_p.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2);
        return picked.masked_fill(targets.eq(-100), 0).sum(1);
      };
      const at::Tensor ratio =
          log_likelihood(a, b) - log_likelihood(reference_table, reference_head);
      const at::Tensor z = beta * (ratio.slice(0, 0, pairs) - ratio.slice(0, pairs));
      const at::Tensor expected =
          -((1 - smoothing) * torch::log_sigmoid(z) + smoothing * torch::log_sigmoid(-z)).sum() /
          divisor;
      expected.backward();
      CHECK(distance(loss.data(), expected) < 1e-6);
      CHECK(distance(model.table.grad(), a.grad()) < 1e-6);
      CHECK(distance(model.head.grad(), b.grad()) < 1e-6);

      Scores scores;
      task->score(model, batch, {}, scores);
      std::map<std::string, double> all;
      for (const auto& [name, value] : task->metrics(scores)) all[name] = value;
      CHECK(all.at("val_loss") == Approx(expected.item<double>() * divisor / pairs).epsilon(1e-5));
      CHECK(all.at("accuracy") == Approx(z.gt(0).to(at::kDouble).mean().item<double>()));
      CHECK(all.at("margin") == Approx(z.mean().item<double>()).epsilon(1e-5));
      CHECK(scores.targets == targets.ne(-100).sum().item<int64_t>());
    }
  }
}

TEST_CASE("the reference's forward pass has no dropout, no graph and no adapters", "[dpo]") {
  torch::manual_seed(1);
  Linear layer(4, 4, false);
  layer.weight = Variable(torch::randn({4, 4}));
  layer.add_adapter(2, 4);
  layer.lora_a.data().normal_();
  layer.lora_b.data().normal_();
  const Variable x(torch::randn({3, 4}));
  const at::Tensor plain = at::matmul(x.data(), layer.weight.data().t());
  const Training training(3);
  // Outside of FrozenForward, the adapters have an effect.
  CHECK(distance(layer(x).data(), plain) > 0.01);
  CHECK(!dropout(x, 0.5).data().equal(x.data()));
  {
    const FrozenForward frozen;
    const Variable y = layer(x);
    CHECK(distance(y.data(), plain) < 1e-6);
    CHECK(!y.edge());
    CHECK(dropout(x, 0.5).data().equal(x.data()));
  }
  CHECK(distance(layer(x).data(), plain) > 0.01);
  CHECK(layer(x).edge());
}

Finished dpo_in(const TempFolder& f, const std::vector<std::string>& words) {
  const Finished done = lathe_in(f, words);
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  return done;
}

/// Creates runs/base, which is trained on a text with twice as many "no" as "yes". Also creates
/// pairs in which "yes" is the chosen answer, and dpo.toml.
void make_preferences(const TempFolder& f) {
  std::string text, pairs;
  for (int i = 0; i < 600; ++i) {
    const char ask = static_cast<char>('a' + i % 7);
    text += str("Q ", ask, i % 3 == 0 ? ": yes.\n" : ": no.\n");
    if (i < 100)
      pairs += str("{\"prompt\": \"Q ", ask, ask, i % 5 == 0 ? ask : '!',
                   ":\", \"chosen\": \" yes.\", \"rejected\": \" no.\"}\n");
  }
  write_file(f / "text.txt", text);
  write_file(f / "pairs.jsonl", pairs);
  write_file(f / "base.toml",
             "[model]\nkind = \"llama\"\nn_layer = 2\nn_head = 2\nn_kv_head = 2\nn_embd = 16\n"
             "block_size = 16\n[data]\ndir = \"text\"\n[optim]\nlr = 3e-3\n[train]\nsteps = 30\n"
             "batch_size = 8\neval_interval = 0\nthreads = 1\n[schedule]\nwarmup_steps = 0\n");
  write_file(f / "dpo.toml",
             "[data]\ndir = \"pairs\"\n[optim]\nlr = 2e-3\n[schedule]\nwarmup_steps = 0\n[train]\n"
             "init_from = \"runs/base\"\nsteps = 20\nbatch_size = 6\ngrad_accum = 2\n"
             "eval_interval = 10\nlog_interval = 1\nthreads = 1\n[checkpoint]\ninterval = 5\n");
  dpo_in(f, {"prepare", "text.txt", "--out", "text"});
  dpo_in(f, {"prepare", "pairs.jsonl", "--format", "preferences", "--out", "pairs"});
  dpo_in(f, {"train", "base.toml"});
}

TEST_CASE("a run learns to prefer the chosen answers, and resumes exactly", "[dpo]") {
  const TempFolder f;
  make_preferences(f);
  const Finished whole = dpo_in(f, {"train", "dpo.toml", "--train.out_dir=whole"});
  CHECK_THAT(whole.out, ContainsSubstring("step 0  validation loss 0.6931, accuracy 0.0000, "
                                          "margin 0.0000"));
  const Json after = parse_json(dpo_in(f, {"eval", "whole"}).out, "", Exit::internal);
  CHECK(after["accuracy"].get<double>() == 1);
  CHECK(after["margin"].get<double>() > 0.1);
  CHECK(after["val_loss"].get<double>() < 0.65);

  CHECK(lathe_in(f, {"train", "dpo.toml", "--train.out_dir=parts", "--train.pause_at=7"}).code ==
        75);
  dpo_in(f, {"train", "dpo.toml", "--train.out_dir=parts"});
  CHECK(difference(f / "whole", f / "parts") == "");

  // Train with two processes, each with its own copy of the reference model.
  dpo_in(f, {"launch", "-n", "2", "--", "train", "dpo.toml", "--train.out_dir=two"});
  CHECK(difference(f / "whole", f / "two") == "");
  // With tensor parallelism, each process has the complete reference model. Losses differ by
  // rounding, because values are added in another order.
  dpo_in(f, {"launch", "-n", "2", "--", "train", "dpo.toml", "--train.out_dir=cut",
             "--dist.tensor=2"});
  const Json cut = parse_json(dpo_in(f, {"eval", "cut"}).out, "", Exit::internal);
  CHECK(cut["val_loss"].get<double>() == Approx(after["val_loss"].get<double>()).epsilon(1e-5));
  // A run with two pipeline stages logs the same last validation, although it adds the gradients of
  // the tied embedding in another order. Both stages take part in an evaluation, and the last stage
  // has the results of the evaluation.
  const Finished staged = dpo_in(f, {"launch", "-n", "2", "--", "train", "dpo.toml",
                                     "--train.out_dir=staged", "--dist.pipeline=2"});
  const std::string last = "step 20  ";
  const auto line_of = [&](const std::string& out) {
    const size_t at = out.find(last + "validation");
    REQUIRE(at != std::string::npos);
    return out.substr(at, out.find('\n', at) - at);
  };
  CHECK(line_of(staged.out) == line_of(whole.out));

  // Other commands must accept such a run and its config.
  dpo_in(f, {"generate", "whole", "--prompt", "Q a:", "--tokens", "4"});
  dpo_in(f, {"eval", "whole", "--data", "text"});
  CHECK_THAT(dpo_in(f, {"inspect", "whole"}).out, ContainsSubstring("tokens"));
  dpo_in(f, {"find", "batch", "dpo.toml", "--memory", "200MB", "--rounds", "1"});
}

TEST_CASE("a run resumes only with the same reference model", "[dpo]") {
  const TempFolder f;
  make_preferences(f);
  const std::vector<std::string> longer{"train", "dpo.toml", "--train.steps=25"};
  dpo_in(f, {"train", "dpo.toml"});
  dpo_in(f, longer);  // the run resumes while the reference is unchanged
  dpo_in(f, {"train", "base.toml", "--train.steps=31"});
  const Finished changed = lathe_in(f, {"train", "dpo.toml", "--train.steps=30"});
  CHECK(changed.code == static_cast<int>(Exit::checkpoint));
  CHECK_THAT(changed.err, ContainsSubstring("train.init_from"));
  CHECK(lathe_in(f, {"eval", "runs/dpo"}).code == static_cast<int>(Exit::checkpoint));
  remove_tree(f / "runs/base");
  const Finished gone = lathe_in(f, {"train", "dpo.toml", "--train.steps=30"});
  CHECK(gone.code == static_cast<int>(Exit::checkpoint));
  CHECK_THAT(gone.err, ContainsSubstring("train.init_from"));
  CHECK(lathe_in(f, {"generate", "runs/dpo", "--prompt", "Q a:", "--tokens", "4"}).code == 0);
}

TEST_CASE("with adapters, the reference is the model without the adapters", "[dpo]") {
  const TempFolder f;
  make_preferences(f);
  const std::vector<std::string> adapters{"--adapters.rank=4", "--optim.lr=1e-2"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), adapters.begin(), adapters.end());
    return words;
  };
  const Finished whole = dpo_in(f, with({"train", "dpo.toml", "--train.out_dir=whole"}));
  CHECK_THAT(whole.out, ContainsSubstring("step 0  validation loss 0.6931"));
  CHECK(lathe_in(f, with({"train", "dpo.toml", "--train.out_dir=parts", "--train.pause_at=7"}))
            .code == 75);
  dpo_in(f, with({"train", "dpo.toml", "--train.out_dir=parts"}));
  CHECK(difference(f / "whole", f / "parts") == "");
  const Json after = parse_json(dpo_in(f, {"eval", "whole"}).out, "", Exit::internal);
  CHECK(after["accuracy"].get<double>() == 1);

  // If adapters.base is set, the reference is that base.
  dpo_in(f, with({"train", "base.toml", "--train.task=dpo", "--data.dir=pairs",
                  "--adapters.base=runs/base", "--train.steps=2", "--train.batch_size=6",
                  "--checkpoint.interval=2", "--train.out_dir=based"}));
  dpo_in(f, {"merge", "based", "--out", "based_merged"});
  const auto loss = [&](const char* run) {
    return parse_json(dpo_in(f, {"eval", run}).out, "", Exit::internal)["val_loss"].get<double>();
  };
  CHECK(loss("based_merged") == Approx(loss("based")).epsilon(1e-3));

  // The merged run has the same reference model. If that model is trained further, the merged run
  // refuses it.
  fs::copy(f / "runs/base", f / "kept", fs::copy_options::recursive);
  dpo_in(f, {"train", "base.toml", "--train.out_dir=runs/base", "--train.steps=200"});
  const Finished changed = lathe_in(f, {"eval", "based_merged"});
  CHECK(changed.code == 4);
  CHECK_THAT(changed.err, ContainsSubstring("train.init_from = runs/base"));
  fs::remove_all(f / "runs/base");
  fs::rename(f / "kept", f / "runs/base");

  // Relative to the reference, the merged model has the same margins as the model with adapters.
  dpo_in(f, {"merge", "whole", "--out", "merged"});
  const Json merged = parse_json(dpo_in(f, {"eval", "merged"}).out, "", Exit::internal);
  CHECK(merged["margin"].get<double>() == Approx(after["margin"].get<double>()).epsilon(1e-3));

  // If a config has no adapters, its plan includes the memory of the reference, a second model.
  const auto parameters = [&](const std::vector<std::string>& words) {
    const Json plan = parse_json(dpo_in(f, words).out, "", Exit::internal);
    INFO(json_text(plan, 1));
    return plan["memory_mb"]["parameters"].get<double>();
  };
  const double one = parameters({"plan", "base.toml", "--json"}),
               two = parameters({"plan", "dpo.toml", "--json"});
  CHECK(two == Approx(2 * one).epsilon(0.01));
  CHECK(parameters(with({"plan", "dpo.toml", "--json"})) < 1.5 * one);
}

TEST_CASE("data and keys that do not fit the dpo task are refused", "[dpo]") {
  const TempFolder f;
  make_preferences(f);
  const auto refused = [&](std::vector<std::string> words, const std::string& key, Exit code) {
    words.insert(words.begin(), "train");
    words.emplace_back("--train.out_dir=refused");
    const Finished done = lathe_in(f, words);
    INFO(key << ": " << done.err);
    CHECK(done.code == static_cast<int>(code));
    CHECK_THAT(done.err, ContainsSubstring(key));
    CHECK(!fs::exists(f / "refused"));
  };
  refused({"dpo.toml", "--train.batch_size=3"}, "train.batch_size", Exit::usage);
  refused({"dpo.toml", "--dpo.label_smoothing=0.5"}, "dpo.label_smoothing", Exit::usage);
  refused({"base.toml", "--data.dir=pairs"}, "train.init_from", Exit::usage);
  refused({"base.toml", "--data.dir=pairs", "--train.task=language"}, "pairs", Exit::data);
  refused({"base.toml", "--train.task=dpo", "--train.init_from=runs/base"}, "preferences",
          Exit::data);
  refused({"base.toml", "--dpo.beta=0.5"}, "dpo.beta", Exit::usage);
  dpo_in(f, {"train", "dpo.toml", "--train.steps=1"});  // the unchanged config is accepted
}

}  // namespace
