// Tests of model kinds and tasks: metrics, micro-batches, adapters, predictions and invalid input.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/io/checksum.h"
#include "data/examples/example_manifest.h"
#include "nn/models/model.h"
#include "tests/support/kinds.h"
#include "train/config/transform.h"
#include "train/store/checkpoint.h"
#include "train/tasks/task.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// A model whose output is its input.
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

TEST_CASE("metrics of an evaluation agree with their definitions", "[tasks]") {
  // The target is the likeliest class in three of the seven rows. In the other four rows it is the
  // second, fifth, sixth and seventh likeliest class.
  const at::Tensor logits = -torch::arange(9, at::kFloat).repeat({7, 1});
  const at::Tensor targets = torch::tensor({0, 0, 0, 1, 4, 5, 6}, at::kLong);
  const auto classes = figures("classification", {logits, targets});
  CHECK(classes.at("accuracy") == Approx(3.0 / 7));
  CHECK(classes.at("top5") == Approx(5.0 / 7));
  CHECK(classes.at("val_loss") ==
        Approx(torch::cross_entropy_loss(logits, targets).item<double>()));
  // With at most five classes, top5 would always be 1, so it is left out.
  const auto few = [&](int64_t n) {
    return figures("classification",
                   {logits.slice(0, 0, 4).slice(1, 0, n), targets.slice(0, 0, 4)});
  };
  CHECK(!few(5).contains("top5"));
  CHECK(few(6).at("top5") == 1);
  // Equally likely classes rank by index, so class 0 is predicted, as std::max_element would
  // choose.
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor equal = torch::zeros({9, 9}, dtype), each = torch::arange(9);
    CHECK(figures("classification", {equal, each}).at("accuracy") == Approx(1.0 / 9));
    CHECK(figures("classification", {equal, each}).at("top5") == Approx(5.0 / 9));
  }

  torch::manual_seed(1);
  const at::Tensor predicted = torch::randn({4, 3}), is = torch::randn({4, 3});
  const double mean_square = torch::mse_loss(predicted, is).item<double>();
  CHECK(find_task("regression")->loss(Echo(), {predicted, is}, 4).item() == Approx(mean_square));
  CHECK(find_task("regression")->loss(Echo(), {predicted, is}, 8).item() ==
        Approx(mean_square / 2));
  DatasetInfo facts;
  CHECK(figures("regression", {predicted, is}).at("mse") == Approx(mean_square));
  CHECK(figures("regression", {predicted, is}).at("mae") ==
        Approx(torch::l1_loss(predicted, is).item<double>()));
  facts.target_scale = {1, 10, 100};  // metrics are then in the data's units
  const at::Tensor scale = torch::tensor(facts.target_scale);
  CHECK(figures("regression", {predicted, is}, facts).at("mse") ==
        Approx(torch::mse_loss(predicted * scale, is * scale).item<double>()));
}

Json details_of(const char* task, const Batch& batch, const DatasetInfo& facts) {
  Scores scores{.detailed = true};
  find_task(task)->score(Echo(), batch, facts, scores);
  find_task(task)->score(Echo(), batch, facts, scores);  // scores of batches accumulate
  return find_task(task)->details(scores, facts);
}

TEST_CASE("the tables of an evaluation agree with their definitions", "[tasks]") {
  // The predicted classes are 0 0 1 1 1 2.
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
  facts.outputs = 21;  // a confusion matrix of 21 classes is too wide for a terminal
  CHECK(!details_of("classification", {at::one_hot(targets, 21).to(at::kFloat), targets}, facts)
             .contains("confusion"));

  torch::manual_seed(1);
  const at::Tensor predicted = torch::randn({50, 2}) + 2,
                   is = predicted + 0.3 * torch::randn({50, 2});
  facts = {.outputs = 2, .target_mean = {5e6, 1}, .target_scale = {1, 100}};
  const Json errors = details_of("regression", {predicted, is}, facts);
  double mean_r2 = 0;
  for (int64_t k = 0; k < 2; ++k) {
    const double scale = k == 0 ? 1 : 100;
    const at::Tensor x = predicted.select(1, k) * scale, y = is.select(1, k) * scale;
    const double r2 = 1 - torch::mse_loss(x, y).item<double>() / y.var(false).item<double>();
    const Json& json = errors["outputs"][static_cast<size_t>(k)];
    CHECK(json["mae"].get<double>() == Approx(torch::l1_loss(x, y).item<double>()));
    CHECK(json["rmse"].get<double>() == Approx(std::sqrt(torch::mse_loss(x, y).item<double>())));
    CHECK(json["r2"].get<double>() == Approx(r2));
    mean_r2 += r2 / 2;
  }
  CHECK(errors["r2"].get<double>() == Approx(mean_r2));
  // If all targets are equal, r2 is NaN, however the sums of the targets are rounded.
  for (int64_t rows = 3; rows < 50; ++rows) {
    const at::Tensor equal = torch::full({rows, 2}, 0.1, at::kDouble);
    const Json of_equal = details_of("regression", {predicted.slice(0, 0, rows), equal}, facts);
    CHECK(of_equal["outputs"][0]["r2"] == json_number(NAN));
  }
}

TEST_CASE("lathe eval prints a table of classes or outputs", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);
  const Finished trained = lathe_in(f, {"train", "kind.toml", "--train.out_dir=classes"});
  INFO(trained.out << trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.out.find("top5") == std::string::npos);  // there are only four classes
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

TEST_CASE("divided into micro-batches, a batch has the same loss", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    if (kind.keys.find("batch") != std::string::npos || kind.name == "convnet")
      continue;  // batch norm computes statistics of each micro-batch
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
      CHECK(four[i] == Approx(one[i]).epsilon(1e-4));  // six steps accumulate float32 rounding
    CHECK(less[5] != Approx(one[5]).epsilon(1e-4));    // the comparison notices a smaller batch
  }
}

TEST_CASE("invalid keys, and keys that do not fit the data or the model, are refused with a reason",
          "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);

  // Each case has the keys, and the texts that the message must contain.
  using Words = std::vector<std::string>;
  const std::vector<std::pair<Words, Words>> cases{
      {{"--model.n_head=2"}, {"model.n_head", "\"gpt\" or \"llama\"", "\"mlp\""}},
      {{"--model.kind=nonsense"},
       {"model.kind = \"nonsense\"", "gpt | llama | rnn | mlp | convnet"}},
      {{"--data.dir=text"}, {"model.kind = \"mlp\"", "tokens", "text"}},
      {{"--train.task=regression"}, {"images", "classes", "train.task"}},
      {{"--train.task=dance"}, {"train.task = \"dance\"", "auto | language"}},
      {{"--data.fold=1"}, {"data.fold = 1", "data.folds = 0"}},
      {{"--data.folds=1"}, {"data.folds = 1"}},
      {{"--model.lora=4"}, {"model.lora", "adapters.rank"}},
      {{"--data.dir=numbers", "--data.crop=1"}, {"data.crop"}}};
  for (const auto& [more, facts] : cases) {
    std::vector<std::string> args{"train", "kind.toml", "--train.out_dir=never"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(more.back());
    const bool concerns_data = more.front() == "--train.task=regression";
    CHECK(done.code == static_cast<int>(concerns_data ? Exit::data : Exit::usage));
    for (const std::string& fact : facts) CHECK_THAT(done.err, ContainsSubstring(fact));
    CHECK(!fs::exists(f / "never"));
  }

  // Keys that do not fit an RNN.
  write_config(
      f, *std::find_if(kinds.begin(), kinds.end(), [](const Kind& k) { return k.name == "rnn"; }));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.dir=images"}).err,
             ContainsSubstring("model.kind = \"rnn\"") && ContainsSubstring("images") &&
                 ContainsSubstring("mlp"));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--amp.dtype=fp8", "--model.n_layer=4",
                          "--train.batch_size=8", "--model.block_size=16"})
                 .err,
             ContainsSubstring("amp.dtype = \"fp8\"") &&
                 ContainsSubstring("model.kind = \"rnn\"") && ContainsSubstring("\"bf16\""));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.flip=true"}).err,
             ContainsSubstring("data.flip") && ContainsSubstring("tokens"));
}

TEST_CASE("eval uses the validation split of other data, even if the run validates on a fold",
          "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, {"mlp", "images", "n_hidden = 16\n"});
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=folded", "--data.folds=2",
                       "--data.fold=1", "--train.steps=4"})
              .code == 0);
  fs::copy(f / "images", f / "others", fs::copy_options::recursive);
  const auto examples = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"eval", "folded"};
    words.insert(words.end(), more.begin(), more.end());
    return last_line(lathe_in(f, words))["samples"].get<int64_t>();
  };
  const Json manifest = parse_json(slurp(f / "others/manifest.json"), "", Exit::internal);
  const int64_t val = manifest["val"]["examples"];
  CHECK(examples({"--data", "others"}) == val);
  CHECK(examples({}) > val);  // a fold, which has half of all examples
}

TEST_CASE("adapters on an MLP can be trained and merged", "[tasks]") {
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

TEST_CASE("a run without trainable parameters is refused before any file is created", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(
      f, *std::find_if(kinds.begin(), kinds.end(), [](const Kind& k) { return k.name == "rnn"; }));
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=base", "--train.steps=2"}).code == 0);

  // The second config has no model kind and takes the kind of the base, so checking only the config
  // finds no error.
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
      CHECK_THAT(refused.err, ContainsSubstring("adapters.rank = 2") &&
                                  ContainsSubstring("model.kind = \"rnn\""));
      CHECK(!fs::exists(f / "never"));
    }
  }

  CHECK_THAT(error_of([] { parameters_to_train(Echo(), RunConfig()); }),
             ContainsSubstring("model.kind") && ContainsSubstring("frozen"));
}

TEST_CASE("lathe eval --batches gives the same validation loss as training", "[tasks]") {
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
  // Other numbers of batches give other results.
  CHECK(last_line(lathe_in(f, {"eval", "run", "--batches", "4"}))["val_loss"] != trained);
  CHECK(last_line(lathe_in(f, {"eval", "run"}))["tokens"] == 1999);
  const Finished refused = lathe_in(f, {"eval", "run", "text.txt", "--batches", "3"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("--batches"));
}

/// Returns the lines of a text.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Trains two models on tables. One classifies flowers by color and size. Its table has ids, and
/// some sizes are missing. The other model predicts prices.
class Tables {
 public:
  Tables() {
    std::string flowers = "name;color;size;junk;kind\n", prices = "area;rooms;price\n";
    for (int i = 0; i < 120; ++i) {
      const bool is_rose = i % 3 == 0;
      flowers += str("f", i, ";",
                     is_rose      ? "red"
                     : i % 2 == 0 ? "blue"
                                  : "white",
                     ";", i % 10 == 4 ? "" : std::to_string(i % 7 + (is_rose ? 4 : 0)), ";?;",
                     is_rose ? "rose" : "iris, blue", "\n");
      prices += str(20 + i % 50, ";", 1 + i % 4, ";", 1000 * (20 + i % 50) + 500 * (i % 4), ".5\n");
    }

    write_file(f / "flowers.csv", flowers);
    write_file(f / "prices.csv", prices);
    make({"prepare", "flowers.csv", "--out", "flowers", "--id", "name", "--drop", "junk",
          "--missing", "mean"});
    make({"prepare", "prices.csv", "--out", "prices", "--task", "regression"});

    for (const std::string name : {"flowers", "prices"}) {
      write_file(f / (name + ".toml"),
                 "[model]\nkind = \"mlp\"\nn_hidden = 16\ndropout = 0.2\n[data]\ndir = \"" + name +
                     "\"\n[optim]\nlr = 1e-2\n[schedule]\nkind = \"constant\"\nwarmup_steps = 0\n"
                     "[train]\nsteps = 150\nbatch_size = 16\neval_interval = 150\nthreads = 1\n");
      make({"train", name + ".toml"});
    }
  }
  void make(const std::vector<std::string>& words) const {
    const Finished done = lathe_in(f, words);
    INFO(done.err << done.out);
    REQUIRE(done.code == 0);
  }
  Finished predict(const std::string& run, const std::string& file,
                   const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words{"predict", "runs/" + run, file, "--threads", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    return lathe_in(f, words);
  }
  std::vector<std::string> predicted(const std::string& run, const std::string& file,
                                     const std::vector<std::string>& flags = {}) const {
    const Finished done = predict(run, file, flags);
    INFO(done.err);
    CHECK(done.code == 0);
    return lines_of(done.out);
  }

  TempFolder f;
};

TEST_CASE("a classifier predicts classes for the rows of a new table", "[tasks]") {
  const Tables t;
  write_file(t.f / "new.csv",
             "size,color,name\n8,red,\"a,1\"\n,blue,b\n3,white,c\n9,red,d\n2,blue,e\n");
  const auto lines = t.predicted("flowers", "new.csv");
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "name,class,\"p_iris, blue\",p_rose");
  CHECK_THAT(lines[1], ContainsSubstring("\"a,1\",rose,"));
  CHECK_THAT(lines[2], ContainsSubstring("b,\"iris, blue\","));
  CHECK_THAT(lines[3], ContainsSubstring("c,\"iris, blue\","));

  // The order of columns, the separator and the presence of the target column change nothing. The
  // batch size does not change the number of rows.
  write_file(t.f / "other.tsv",
             "kind\tjunk\tname\tsize\tcolor\n?\t1\ta,1\t8\tred\n?\t\tb\t\tblue\n?\t\tc\t3\twhite\n"
             "?\t\td\t9\tred\n?\t\te\t2\tblue\n");
  CHECK(t.predicted("flowers", "other.tsv") == lines);
  CHECK(t.predicted("flowers", "new.csv", {"--batch-size", "2"}).size() == lines.size());

  // predict does not need the data folder, because the checkpoint holds the encoding.
  fs::rename(t.f / "flowers", t.f / "moved");
  CHECK(t.predicted("flowers", "new.csv") == lines);
  fs::rename(t.f / "moved", t.f / "flowers");

  t.make({"predict", "runs/flowers", "new.csv", "--out", "out.jsonl"});
  const auto json = lines_of(slurp(t.f / "out.jsonl"));
  REQUIRE(json.size() == 5);
  const Json first = parse_json(json[0], "", Exit::internal);
  CHECK(first["id"] == "a,1");
  CHECK(first["class"] == "rose");
  CHECK(first["probabilities"]["rose"].get<double>() +
            first["probabilities"]["iris, blue"].get<double>() ==
        Approx(1));
  t.make({"predict", "runs/flowers", "new.csv", "--out", "out.csv"});
  CHECK(lines_of(slurp(t.f / "out.csv")) == lines);
  // The command may replace a file that it wrote.
  t.make({"predict", "runs/flowers", "new.csv", "--out", "out.csv"});

  // --out must not replace an input file, however its path is written.
  const std::string input = slurp(t.f / "new.csv");
  for (const std::string out : {"new.csv", "./new.csv"}) {
    const Finished refused =
        lathe_in(t.f, {"predict", "runs/flowers", "new.csv", "--out", out, "--force", "true"});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err,
               ContainsSubstring(out) && ContainsSubstring("input") && ContainsSubstring("--out"));
  }
  CHECK(slurp(t.f / "new.csv") == input);

  // If the table has no ids, rows are numbered.
  write_file(t.f / "plain.csv", "size,color,extra\n8,red,1\n");
  const Finished plain = t.predict("flowers", "plain.csv");
  CHECK_THAT(plain.out, ContainsSubstring("row,class") && ContainsSubstring("\n1,rose,"));
  CHECK_THAT(plain.err, ContainsSubstring("plain.csv") && ContainsSubstring("\"extra\""));
}

TEST_CASE("predictions agree with the evaluation, and are in the units of the target", "[tasks]") {
  const Tables t;
  // The fraction of correct predictions on the validation split is the evaluation's accuracy.
  const ExampleManifest m = read_example_manifest(t.f / "flowers");
  const ExampleArray inputs(t.f / "flowers/val_inputs.npy", ""),
      targets(t.f / "flowers/val_targets.npy", "");
  std::string rows = "color,size\n";
  std::vector<std::string> wanted;
  for (int64_t i = 0; i < inputs.examples(); ++i) {
    std::vector<double> x(4);
    double y = 0;
    inputs.read(i, x.data());
    targets.read(i, &y);
    const size_t color =
        static_cast<size_t>(std::max_element(x.begin(), x.begin() + 3) - x.begin());
    rows += str(m.table->columns[1].values[color], ",", x[3], "\n");
    wanted.push_back(m.labels[static_cast<size_t>(y)]);
  }

  write_file(t.f / "val.csv", rows);
  t.make({"predict", "runs/flowers", "val.csv", "--out", "val.jsonl"});
  const auto lines = lines_of(slurp(t.f / "val.jsonl"));
  REQUIRE(lines.size() == wanted.size());
  double right = 0, loss = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = parse_json(lines[i], "", Exit::internal);
    right += line["class"] == wanted[i] ? 1 : 0;
    loss -= std::log(line["probabilities"][wanted[i]].get<double>());
  }

  const Json eval = last_line(lathe_in(t.f, {"eval", "runs/flowers"}));
  const auto n = static_cast<double>(lines.size());
  CHECK(eval["accuracy"].get<double>() == Approx(right / n));
  CHECK(eval["val_loss"].get<double>() == Approx(loss / n).epsilon(1e-4));

  // A regression prints numbers in the units of the target.
  write_file(t.f / "new.csv", "rooms;area\n2;30\n4;60\n");
  const auto prices = t.predicted("prices", "new.csv");
  REQUIRE(prices.size() == 3);
  CHECK(prices[0] == "row,prediction");
  CHECK(std::stod(prices[1].substr(2)) == Approx(30500).epsilon(0.1));
  CHECK(std::stod(prices[2].substr(2)) == Approx(61500).epsilon(0.1));
}

TEST_CASE("predict refuses input that it can't use with a reason, and writes nothing", "[tasks]") {
  const Tables t;
  const auto refused = [&](const std::string& text, const std::vector<std::string>& facts,
                           Exit code = Exit::data) {
    INFO(text);
    write_file(t.f / "new.csv", text);
    const Finished done = t.predict("flowers", "new.csv", {"--out", "out.csv"});
    CHECK(done.code == static_cast<int>(code));
    for (const std::string& fact : facts) CHECK_THAT(done.err, ContainsSubstring(fact));
    CHECK(!fs::exists(t.f / "out.csv"));
    for (const std::string& name : names(t.f.path())) CHECK(name.find("unfinished") == name.npos);
  };

  refused("color,name\nred,a\n", {"new.csv:", "column \"size\""});
  refused("color,size\nred,1\nred,big\n", {"new.csv:3: column 2 (size)", "\"big\""});
  refused("color,size\npink,1\n", {"column 1 (color)", "\"pink\""});
  refused("color,size,size\nred,1,2\n", {"new.csv:", "name \"size\""});
  refused("color,size\n", {"new.csv", "no examples"});
  refused("color,size\nred\n", {"new.csv:2"});

  write_file(t.f / "new.csv", "color,size\nred,1\n");
  write_file(t.f / "mine.csv", "mine");
  CHECK(t.predict("flowers", "new.csv", {"--out", "mine.csv"}).code == 2);
  CHECK(slurp(t.f / "mine.csv") == "mine");
  CHECK_THAT(t.predict("flowers", "new.csv", {"--out", "x.txt"}).err,
             ContainsSubstring("--out") && ContainsSubstring(".csv or .jsonl") &&
                 ContainsSubstring("x.txt"));
  CHECK(t.predict("flowers", "nowhere.csv").code == 3);
  CHECK(t.predict("nowhere", "new.csv").code == 4);

  // A model of images can't learn from a table.
  write_file(t.f / "kind.toml",
             "[model]\nkind = \"convnet\"\n[data]\ndir = \"flowers\"\n[train]\nsteps = 2\n"
             "batch_size = 16\neval_interval = 2\n");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"train", "kind.toml"},
                                                  {"plan", "kind.toml"},
                                                  {"sweep", "kind.toml", "--optim.lr=1e-3,1e-2"}}) {
    const Finished table = lathe_in(t.f, command);
    CHECK(table.code == 3);
    CHECK_THAT(table.err, ContainsSubstring("flowers") && ContainsSubstring("--shape"));
  }

  // A language model is refused, because it generates text instead of predicting.
  make_tiny_run(t.f.path());
  t.make({"train", "tiny.toml", "--train.steps=1"});
  const Finished language = t.predict("tiny", "new.csv");
  CHECK(language.code == 2);
  CHECK_THAT(language.err, ContainsSubstring("lathe generate runs/tiny"));
}

TEST_CASE("predict reads arrays with or without an image shape, and checkpoints of older builds",
          "[tasks]") {
  const TempFolder f;
  make_data(f);
  write_config(f, {"convnet", "images", "n_stage = 2\nn_block = 1\nn_channel = 4\n"});
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.steps=30"}).code == 0);
  const auto predicted = [&](const std::string& file) {
    return lathe_in(f, {"predict", "runs/kind", file, "--threads", "1"});
  };
  const Finished whole = predicted("images/val_inputs.npy");
  REQUIRE(whole.code == 0);
  CHECK_THAT(whole.out, ContainsSubstring("row,class,p_0,p_1,p_2,p_3\n1,"));
  const auto rewritten = [&](const std::vector<int64_t>& sizes, size_t bytes) {
    NpyWriter out(f / "new.npy", ArrayType::u8, sizes);
    const ExampleArray in(f / "images/val_inputs.npy", "");
    REQUIRE(in.type() == ArrayType::u8);
    out.write(in.example(0), bytes);
    out.finish();
    return predicted("new.npy");
  };
  const int64_t n = ExampleArray(f / "images/val_inputs.npy", "").examples();
  const auto all = static_cast<size_t>(n * 16);
  CHECK(rewritten({n, 4, 4}, all).out == whole.out);
  CHECK(rewritten({n, 16}, all).out == whole.out);
  const Finished refused = rewritten({n, 2, 8}, all);
  CHECK(refused.code == 3);
  CHECK_THAT(refused.err, ContainsSubstring("2x8") && ContainsSubstring("1x4x4"));

  // A checkpoint of an earlier build has no encoding, so predict reads it from the data folder.
  const fs::path state = find_checkpoint(f / "runs/kind") / "state.json";
  Json json = parse_json(slurp(state), "", Exit::internal);
  REQUIRE(json.contains("examples"));
  json.erase("examples");
  write_file(state, json_text(json));
  const fs::path listed = state.parent_path() / "manifest.json";
  Json manifest = parse_json(slurp(listed), "", Exit::internal);
  manifest["files"]["state.json"] = {{"bytes", fs::file_size(state)},
                                     {"xxh3", file_checksum(state)}};
  write_file(listed, json_text(manifest));
  CHECK(predicted("images/val_inputs.npy").out == whole.out);

  // The folder may have other data by now.
  REQUIRE(json.contains("data_hash"));
  json["data_hash"] = "0123456789abcdef";
  write_file(state, json_text(json));
  manifest["files"]["state.json"] = {{"bytes", fs::file_size(state)},
                                     {"xxh3", file_checksum(state)}};
  write_file(listed, json_text(manifest));
  const Finished other = predicted("images/val_inputs.npy");
  CHECK(other.code == 3);
  CHECK_THAT(other.err, ContainsSubstring("images is not the data"));
  fs::rename(f / "images", f / "moved");
  const Finished lost = predicted("moved/val_inputs.npy");
  CHECK(lost.code == 3);
  CHECK_THAT(lost.err, ContainsSubstring("images"));
}

}  // namespace
