// Tests of distillation: compares the loss with LibTorch's, and runs complete trainings.
#include "autograd/engine.h"
#include "core/io/json.h"
#include "tests/support/process.h"
#include "tests/support/torch_oracle.h"
#include "tests/train/tasks/bigrams.h"
#include "train/tasks/task.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("the distillation loss and its gradients equal LibTorch's", "[distill]") {
  torch::manual_seed(5);
  constexpr int64_t v = 7, c = 3, b = 2, t = 5;
  const at::Tensor table = torch::randn({v, c}), head = torch::randn({v, c}),
                   teacher_table = torch::randn({v, c}), teacher_head = torch::randn({v, c});
  const at::Tensor inputs = torch::randint(v, {b, t}, at::kLong);
  at::Tensor targets = torch::randint(v, {b, t}, at::kLong);
  targets[1].slice(0, 2, 4).fill_(-100);

  for (const double temperature : {1.0, 2.5}) {
    for (const double mix : {1.0, 0.3}) {
      RunConfig config;
      config.schema().set(&config, "distill.temperature", temperature, "");
      config.schema().set(&config, "distill.mix", mix, "");
      config.schema().set(&config, "model.vocab_size", v, "");
      const double divisor = 11;
      const auto task = find_task("distill")->of_run(
          config, std::make_unique<Bigrams>(teacher_table, teacher_head, true, false));
      const Bigrams model(table, head, true);
      const Batch batch{inputs, targets};
      const Variable loss = task->loss(model, batch, divisor);
      backward(loss);

      const at::Tensor p = table.clone().requires_grad_(), q = head.clone().requires_grad_();
      const at::Tensor logits = at::matmul(p.index({inputs}), q.t()).view({-1, v}),
                       of_teacher = at::matmul(teacher_table.index({inputs}), teacher_head.t())
                                        .view({-1, v});
      const at::Tensor flat = targets.view({-1}), is_learned = flat.ne(-100);
      const at::Tensor data = torch::cross_entropy_loss(logits, flat, {}, at::Reduction::Sum);
      const at::Tensor divergence =
          torch::kl_div((logits / temperature).log_softmax(1).index({is_learned}),
                        (of_teacher / temperature).softmax(1).index({is_learned}),
                        at::Reduction::Sum) *
          temperature * temperature;
      const at::Tensor expected = ((1 - mix) * data + mix * divergence) / divisor;
      expected.backward();
      CHECK(distance(loss.data(), expected) < 1e-6);
      CHECK(distance(model.table.grad(), p.grad()) < 1e-6);
      CHECK(distance(model.head.grad(), q.grad()) < 1e-6);

      Scores scores;
      task->score(model, batch, {}, scores);
      std::map<std::string, double> all;
      for (const auto& [name, value] : task->metrics(scores)) all[name] = value;
      const auto n = static_cast<double>(is_learned.sum().item<int64_t>());
      CHECK(all.at("val_loss") == Approx(expected.item<double>() * divisor / n).epsilon(1e-5));
      CHECK(all.at("cross_entropy") == Approx(data.item<double>() / n).epsilon(1e-5));
      CHECK(all.at("divergence") == Approx(divergence.item<double>() / n).epsilon(1e-5));
    }
  }
}

TEST_CASE("a student approaches its teacher, and its run resumes exactly", "[distill]") {
  const TempFolder f;
  const auto ran = [&](const std::vector<std::string>& words) {
    const Finished done = lathe_in(f, words);
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    return done;
  };
  make_tiny_run(f.path());
  ran({"train", "tiny.toml", "--train.out_dir=teacher", "--optim.lr=1e-2"});

  const auto student = [](const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"train",
                                   "tiny.toml",
                                   "--train.out_dir=" + out,
                                   "--train.task=distill",
                                   "--distill.teacher=teacher",
                                   "--distill.mix=1",
                                   "--model.n_embd=8",
                                   "--optim.lr=1e-2"};
    for (const std::string& key : more) {
      const std::string name = key.substr(0, key.find('=') + 1);
      std::erase_if(words, [&](const std::string& word) { return word.starts_with(name); });
      words.push_back(key);
    }
    return words;
  };

  ran(student("whole"));
  const std::string metrics = slurp(f / "whole/metrics.jsonl");
  const Json first = parse_json(metrics.substr(0, metrics.find('\n')), "", Exit::internal);
  const Json last = parse_json(ran({"eval", "whole"}).out, "", Exit::internal);
  CHECK(last["divergence"].get<double>() < 0.5 * first["val_loss"].get<double>());

  CHECK(lathe_in(f, student("parts", {"--train.pause_at=13"})).code == 75);
  ran(student("parts"));
  CHECK(difference(f / "whole", f / "parts") == "");

  // The teacher must exist, must be unchanged, and must have the student's vocabulary and a context
  // that is not shorter than the student's.
  const auto refused = [&](const std::vector<std::string>& words, Exit code,
                           const std::vector<std::string>& facts) {
    const Finished done = lathe_in(f, words);
    INFO(done.err);
    CHECK(done.code == static_cast<int>(code));
    for (const std::string& fact : facts) CHECK_THAT(done.err, ContainsSubstring(fact));
  };

  refused(student("new", {"--distill.teacher="}), Exit::usage, {"needs distill.teacher"});
  refused(student("new", {"--distill.teacher=nothing"}), Exit::checkpoint,
          {"distill.teacher", "nothing"});
  refused(student("new", {"--model.vocab_size=200"}), Exit::usage,
          {"distill.teacher", "model.vocab_size"});
  refused(student("new", {"--model.block_size=32"}), Exit::usage,
          {"distill.teacher", "lower model.block_size"});
  refused({"train", "tiny.toml", "--train.out_dir=new", "--distill.mix=0.7"}, Exit::usage,
          {"distill.mix"});
  write_file(
      f / "rnn.toml",
      "[model]\nkind = \"rnn\"\nn_layer = 1\nn_hidden = 8\nn_embd = 8\n[data]\ndir = \"data\"\n"
      "[train]\nsteps = 1\nbatch_size = 1\neval_interval = 0\n");
  ran({"train", "rnn.toml", "--train.out_dir=recurrent"});
  refused(student("new", {"--distill.teacher=recurrent", "--data.documents=separate",
                          "--data.document_end=0"}),
          Exit::usage, {"distill.teacher", "kind rnn", "data.documents"});
  write_file(f / "points.csv", "1,2,0\n2,1,1\n3,2,0\n");
  ran({"prepare", "points.csv", "--out", "points", "--val", "0"});
  write_file(
      f / "mlp.toml",
      "[model]\nkind = \"mlp\"\n[data]\ndir = \"points\"\n[train]\nsteps = 1\nbatch_size = 1\n"
      "eval_interval = 0\n");
  ran({"train", "mlp.toml", "--train.out_dir=classifier"});
  refused(student("new", {"--distill.teacher=classifier"}), Exit::usage,
          {"distill.teacher", "kind mlp"});
  CHECK(!fs::exists(f / "new"));

  // A teacher that was trained further counts as a different teacher.
  ran({"train", "tiny.toml", "--train.out_dir=teacher", "--optim.lr=1e-2", "--train.steps=41"});
  refused(student("whole", {"--train.steps=50"}), Exit::checkpoint, {"distill.teacher"});
  ran(student("new", {"--train.steps=50"}));  // a new run may use the changed teacher
}

}  // namespace
