// Micro-batches, adapters and bad input of kinds and tasks, through the whole trainer.
#include <algorithm>
#include <sstream>

#include "nn/models/model.h"
#include "tests/support/kinds.h"
#include "train/config/transform.h"
#include "train/tasks/task.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Its output is its input.
struct Echo : Model {
  Variable operator()(const at::Tensor& inputs) const override { return Variable(inputs); }
  bool has_head() const override { return false; }
  Variable features(const at::Tensor& inputs) const override { return Variable(inputs); }
  const Variable& head_weight() const override { LATHE_CHECK(false, "Echo has no head"); }
  bool caches_keys() const override { return false; }
  void visit(Visit&) override {}
  double flops_per_unit() const override { return 0; }
  std::unique_ptr<Model> clone() const override { return std::make_unique<Echo>(); }
};

std::map<std::string, double> figures(const char* task, const Batch& batch,
                                      const DatasetInfo& facts = {}) {
  Scores scores;
  find_task(task)->score(Echo(), batch, facts, scores);
  std::map<std::string, double> all;
  for (const auto& [name, value] : find_task(task)->metrics(scores)) all[name] = value;
  return all;
}

TEST_CASE("an evaluation's figures are their definitions", "[tasks]") {
  // A row's class is the likeliest of three, the second, fifth, sixth and seventh of one each.
  const at::Tensor logits = -torch::arange(9, at::kFloat).repeat({7, 1});
  const at::Tensor targets = torch::tensor({0, 0, 0, 1, 4, 5, 6}, at::kLong);
  const auto classes = figures("classification", {logits, targets});
  CHECK(classes.at("accuracy") == Approx(3.0 / 7));
  CHECK(classes.at("top5") == Approx(5.0 / 7));
  CHECK(classes.at("val_loss") ==
        Approx(torch::cross_entropy_loss(logits, targets).item<double>()));
  // Of five classes, the five likeliest are all.
  const auto few = [&](int64_t n) {
    return figures("classification",
                   {logits.slice(0, 0, 4).slice(1, 0, n), targets.slice(0, 0, 4)});
  };
  CHECK(!few(5).contains("top5"));
  CHECK(few(6).at("top5") == 1);

  torch::manual_seed(1);
  const at::Tensor said = torch::randn({4, 3}), is = torch::randn({4, 3});
  const double mean_square = torch::mse_loss(said, is).item<double>();
  CHECK(find_task("regression")->loss(Echo(), {said, is}, 4).item() == Approx(mean_square));
  CHECK(find_task("regression")->loss(Echo(), {said, is}, 8).item() == Approx(mean_square / 2));
  DatasetInfo facts;
  CHECK(figures("regression", {said, is}).at("mse") == Approx(mean_square));
  CHECK(figures("regression", {said, is}).at("mae") ==
        Approx(torch::l1_loss(said, is).item<double>()));
  facts.target_scale = {1, 10, 100};  // in the data's own units
  const at::Tensor scale = torch::tensor(facts.target_scale);
  CHECK(figures("regression", {said, is}, facts).at("mse") ==
        Approx(torch::mse_loss(said * scale, is * scale).item<double>()));
}

Json details_of(const char* task, const Batch& batch, const DatasetInfo& facts) {
  Scores scores{.detailed = true};
  find_task(task)->score(Echo(), batch, facts, scores);
  find_task(task)->score(Echo(), batch, facts, scores);  // batches add up
  return find_task(task)->details(scores, facts);
}

TEST_CASE("an evaluation's details are their definitions", "[tasks]") {
  // The likeliest of three classes is: 0 0 1 1 1 2.
  const at::Tensor logits =
      at::one_hot(torch::tensor({0, 0, 1, 1, 1, 2}, at::kLong), 3).to(at::kFloat);
  const at::Tensor targets = torch::tensor({0, 1, 1, 1, 0, 0}, at::kLong);
  DatasetInfo facts{.outputs = 3, .labels = {"red", "green", "blue"}};
  const Json all = details_of("classification", {logits, targets}, facts);
  CHECK(all["confusion"] == Json::parse("[[2,2,2],[2,4,0],[0,0,0]]"));
  const auto is_class = [&](size_t c, const char* name, int count, double precision,
                            double recall) {
    const Json& json = all["classes"][c];
    CHECK(json["class"] == name);
    CHECK(json["count"] == count);
    CHECK(json["precision"].get<double>() == Approx(precision));
    if (count > 0) {
      CHECK(json["recall"].get<double>() == Approx(recall));
      CHECK(json["f1"].get<double>() ==
            Approx(precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0));
    }
  };
  is_class(0, "red", 6, 1.0 / 2, 1.0 / 3);
  is_class(1, "green", 6, 2.0 / 3, 2.0 / 3);
  is_class(2, "blue", 0, 0, 0);
  CHECK(all["classes"][2]["recall"] == "nan");
  facts.outputs = 21;  // too wide for a terminal
  CHECK(!details_of("classification", {at::one_hot(targets, 21).to(at::kFloat), targets}, facts)
             .contains("confusion"));

  torch::manual_seed(1);
  const at::Tensor said = torch::randn({50, 2}) + 2, is = said + 0.3 * torch::randn({50, 2});
  facts = {.outputs = 2, .target_mean = {5e6, 1}, .target_scale = {1, 100}};
  const Json errors = details_of("regression", {said, is}, facts);
  double mean_r2 = 0;
  for (int64_t k = 0; k < 2; ++k) {
    const double scale = k == 0 ? 1 : 100;
    const at::Tensor x = said.select(1, k) * scale, y = is.select(1, k) * scale;
    const double r2 = 1 - torch::mse_loss(x, y).item<double>() / y.var(false).item<double>();
    const Json& json = errors["outputs"][static_cast<size_t>(k)];
    CHECK(json["mae"].get<double>() == Approx(torch::l1_loss(x, y).item<double>()));
    CHECK(json["rmse"].get<double>() == Approx(std::sqrt(torch::mse_loss(x, y).item<double>())));
    CHECK(json["r2"].get<double>() == Approx(r2));
    mean_r2 += r2 / 2;
  }
  CHECK(errors["r2"].get<double>() == Approx(mean_r2));
}

TEST_CASE("lathe eval prints tables of classes and outputs", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);
  const Finished trained = lathe_in(f, {"train", "kind.toml", "--train.out_dir=classes"});
  INFO(trained.out << trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.out.find("top5") == std::string::npos);  // four classes
  CHECK(slurp(f / "classes" / "metrics.jsonl").find("top5") == std::string::npos);

  const Finished classes = lathe_in(f, {"eval", "classes"});
  const Json json = last_line(classes);
  CHECK(!json.contains("top5"));
  int64_t right = 0, count = 0;
  for (size_t c = 0; c < 4; ++c) {
    right += json["confusion"][c][c].get<int64_t>();
    count += json["classes"][c]["count"].get<int64_t>();
  }
  CHECK(count == json["samples"].get<int64_t>());
  CHECK(json["accuracy"].get<double>() ==
        Approx(static_cast<double>(right) / static_cast<double>(count)));
  CHECK_THAT(classes.out, ContainsSubstring("class  count  precision  recall"));
  CHECK_THAT(classes.out, ContainsSubstring("class \\ predicted  0"));

  write_config(f, kinds[1]);
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=numbers_run"}).code == 0);
  const Finished numbers = lathe_in(f, {"eval", "numbers_run"});
  CHECK(last_line(numbers)["outputs"][0]["mae"] == last_line(numbers)["mae"]);
  CHECK_THAT(numbers.out, ContainsSubstring("output  mae"));
}

TEST_CASE("micro-batches add up to the batch", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    if (kind.keys.find("batch") != std::string::npos || kind.name == "convnet")
      continue;  // statistics are a batch's
    INFO(kind.name << " on " << kind.data);
    write_config(f, kind);
    const auto losses = [&](const std::string& out, const std::string& rows,
                            const std::string& micro) {
      REQUIRE(
          lathe_in(f, {"train", "kind.toml", "--train.out_dir=" + out, "--train.batch_size=" + rows,
                       "--train.grad_accum=" + micro, "--train.steps=6", "--train.eval_interval=0"})
              .code == 0);
      std::vector<double> all;
      std::istringstream lines(slurp(f / out / "metrics.jsonl"));
      for (std::string line; std::getline(lines, line);)
        all.push_back(parse_json(line, "", Exit::internal)["loss"]);
      fs::remove_all(f / out);
      return all;
    };
    const auto one = losses("one", "8", "1"), four = losses("four", "2", "4"),
               less = losses("less", "2", "3");
    REQUIRE(one.size() == 6);
    for (size_t i = 0; i < 6; ++i)
      CHECK(four[i] == Approx(one[i]).epsilon(1e-4));  // six steps of float32 rounding
    CHECK(less[5] != Approx(one[5]).epsilon(1e-4));    // the control: fewer samples
  }
}

TEST_CASE("what does not go together is one sentence", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--model.n_head=2"},
       "model.n_head is a key of model.kind = \"gpt\", and this model's is \"mlp\""},
      {{"--model.kind=nonsense"},
       "model.kind = \"nonsense\" is not allowed; it must be gpt | llama | rnn | mlp | convnet"},
      {{"--data.dir=text"}, "model.kind = \"mlp\" does not model tokens, which text holds"},
      {{"--train.task=regression"}, "images has classes for targets, not numbers"},
      {{"--train.task=dance"}, "train.task = \"dance\" is not allowed; it must be auto | language"},
      {{"--data.fold=1"}, "data.fold = 1 is not below data.folds = 0"},
      {{"--data.folds=1"}, "data.folds = 1 leaves nothing to train on"},
      {{"--model.lora=4"}, "model.lora is called adapters.rank now"},
      {{"--data.dir=numbers", "--data.crop=1"}, "data.crop"}};
  for (const auto& [more, wanted] : cases) {
    std::vector<std::string> args{"train", "kind.toml", "--train.out_dir=never"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(wanted);
    CHECK((done.code == 2 || done.code == 3));
    CHECK_THAT(done.err, ContainsSubstring(wanted));
    CHECK(!fs::exists(f / "never"));
  }
  write_config(
      f, *std::find_if(kinds.begin(), kinds.end(), [](const Kind& k) { return k.name == "rnn"; }));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.dir=images"}).err,
             ContainsSubstring("model.kind = \"rnn\" models tokens, and images holds examples"));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--amp.dtype=fp8", "--model.n_layer=4",
                          "--train.batch_size=8", "--model.block_size=16"})
                 .err,
             ContainsSubstring("has none; use \"bf16\""));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.flip=true"}).err,
             ContainsSubstring("are for examples"));
}

TEST_CASE("adapters stand on any kind", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, {"mlp", "images", "n_hidden = 16\n"});
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=base", "--train.steps=20"}).code ==
          0);
  const Finished tuned = lathe_in(f, {"train", "kind.toml", "--train.out_dir=tuned",
                                      "--adapters.rank=2", "--adapters.base=base"});
  INFO(tuned.out << tuned.err);
  REQUIRE(tuned.code == 0);
  const double before = last_line(lathe_in(f, {"eval", "base"}))["val_loss"];
  const double after = last_line(lathe_in(f, {"eval", "tuned"}))["val_loss"];
  CHECK(after < before);
  REQUIRE(lathe_in(f, {"merge", "tuned", "--out", "merged"}).code == 0);
  CHECK(last_line(lathe_in(f, {"eval", "merged"}))["val_loss"].get<double>() ==
        Approx(after).epsilon(1e-5));
}

TEST_CASE("a model that leaves nothing to train is refused before anything is made", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(
      f, *std::find_if(kinds.begin(), kinds.end(), [](const Kind& k) { return k.name == "rnn"; }));
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=base", "--train.steps=2"}).code == 0);
  // The kind is the base's here: no config says it, so that a check of the config alone has nothing
  // to find.
  std::string text = slurp(f / "kind.toml");
  const size_t model = text.find("[model]"), behind = text.find('[', model + 1);
  REQUIRE(behind != std::string::npos);
  write_file(f / "other.toml", text.substr(0, model) + text.substr(behind));
  for (const char* config : {"kind.toml", "other.toml"}) {
    for (const std::string key : {"adapters.base", "train.init_from"}) {
      INFO(config << ", " << key);
      const Finished refused = lathe_in(
          f, {"train", config, "--train.out_dir=never", "--adapters.rank=2", "--" + key + "=base"});
      CHECK(refused.code == 2);
      CHECK_THAT(refused.err, ContainsSubstring("adapters.rank = 2 has nothing to act on"));
      CHECK(!fs::exists(f / "never"));
    }
  }
  CHECK_THAT(error_of([] { parameters_to_train(Echo(), RunConfig()); }),
             ContainsSubstring("there is nothing to train"));
}

TEST_CASE("lathe eval --batches has the validation loss of training", "[tasks]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished done = lathe_in(f, {"train", "tiny.toml", "--train.out_dir=run"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  double trained = 0;
  std::istringstream lines(slurp(f / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    trained = parse_json(line, "", Exit::internal).value("val_loss", trained);

  const Json part = last_line(lathe_in(f, {"eval", "run", "--batches", "3"}));
  CHECK(part["val_loss"].get<double>() == trained);
  CHECK(part["tokens"] == 3 * 3 * 16);
  // Controls: other batches, and all of them.
  CHECK(last_line(lathe_in(f, {"eval", "run", "--batches", "4"}))["val_loss"] != trained);
  CHECK(last_line(lathe_in(f, {"eval", "run"}))["tokens"] == 1999);
  const Finished refused = lathe_in(f, {"eval", "run", "text.txt", "--batches", "3"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("--batches"));
}

}  // namespace
