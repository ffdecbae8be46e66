// Model kinds and tasks through the whole trainer: each is as exact, and as plain about bad input, as the GPT.
#include <cmath>

#include "core/io/json.h"
#include "core/rng.h"
#include "tests/catch.h"
#include "tests/process.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

Finished lathe_in(const TempFolder& f, std::vector<std::string> args, double kill_after = -1) {
  return run(
      {.binary = "lathe", .args = std::move(args), .folder = f.path(), .environment = {}, .kill_after_s = kill_after});
}

struct Kind {
  std::string name, data, keys;  ///< keys of [model]
};

/// Images of 4 x 4 whose bright quarter is the class, numbers whose sum is the target, and text.
void make_data(const TempFolder& f) {
  std::string images, numbers;
  for (uint64_t i = 0; i < 240; ++i) {
    const auto draw = [&](uint64_t j) { return unit(philox(counter(i, j), make_key(1, hash_name("kinds")))[0]); };
    double sum = 0;
    for (uint64_t p = 0; p < 16; ++p) {
      const uint64_t quarter = p / 8 * 2 + p % 4 / 2;
      images += std::to_string(static_cast<int>(8 * draw(p)) + (quarter == i % 4 ? 6 : 0)) + ",";
    }
    images += std::to_string(i % 4) + "\n";
    for (uint64_t p = 0; p < 5; ++p) {
      numbers += std::to_string(draw(20 + p)) + ",";
      sum += static_cast<double>(p) * draw(20 + p);
    }
    numbers += std::to_string(100 + 10 * sum) + "\n";
  }
  write_file(f / "images.csv", images);
  write_file(f / "numbers.csv", numbers);
  write_file(f / "text.txt", sample_text(20000));
  REQUIRE(lathe_in(f, {"prepare", "images.csv", "--out", "images", "--shape", "1,4,4"}).code == 0);
  REQUIRE(lathe_in(f, {"prepare", "numbers.csv", "--out", "numbers", "--task", "regression"}).code == 0);
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "text", "--tokenizer", "char"}).code == 0);
}

const std::vector<Kind> kinds{
    {"mlp", "images", "n_hidden = 16\ndropout = 0.1\nnorm = \"batch\"\n"},
    {"mlp", "numbers", "n_hidden = 16\nactivation = \"tanh\"\n"},
    {"convnet", "images", "n_stage = 2\nn_block = 1\nn_channel = 4\ndropout = 0.1\n"},
    {"rnn", "text", "n_hidden = 16\nn_embd = 16\nn_layer = 2\nblock_size = 12\ndropout = 0.1\n"},
    {"rnn", "text", "cell = \"gru\"\nn_hidden = 16\nn_embd = 8\nn_layer = 1\nblock_size = 12\ntie_weights = false\n"}};

void write_config(const TempFolder& f, const Kind& kind) {
  write_file(f / "kind.toml", "[model]\nkind = \"" + kind.name + "\"\n" + kind.keys + "[data]\ndir = \"" + kind.data +
                                  "\"\n" + (kind.name == "convnet" ? "crop = 1\nflip = true\n" : "") +
                                  "[optim]\nlr = 5e-3\n[schedule]\nkind = \"constant\"\n"
                                  "[train]\nsteps = 60\nbatch_size = 8\ngrad_accum = 2\neval_interval = 20\n"
                                  "log_interval = 1\nthreads = 1\n[checkpoint]\ninterval = 20\nkeep = 1\n");
}

Json last_line(const Finished& done) {
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  const std::string text = done.out.substr(0, done.out.size() - 1);
  return parse_json(text.substr(text.rfind('\n') + 1), "", Exit::internal);
}

TEST_CASE("every kind learns, stops and goes on with the same bits, in each precision", "[kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    write_config(f, kind);
    for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
      INFO(kind.name << " on " << kind.data << " in " << dtype);
      fs::remove_all(f / "whole"), fs::remove_all(f / "parts"), fs::remove_all(f / "other");
      const auto train = [&](const std::string& out, std::vector<std::string> more = {}, double kill_after = -1) {
        std::vector<std::string> args{"train", "kind.toml", "--train.out_dir=" + out, "--amp.dtype=" + dtype};
        args.insert(args.end(), more.begin(), more.end());
        return lathe_in(f, args, kill_after);
      };
      const Finished whole = train("whole");
      INFO(whole.out << whole.err);
      REQUIRE(whole.code == 0);
      REQUIRE(train("parts", {"--train.max_time=0.01"}).code == 75);
      const double seconds = whole.seconds;
      for (int i = 1; i < 4; ++i) train("parts", {}, seconds * i / 4);  // killed, or through
      REQUIRE(train("parts").code == 0);
      CHECK(difference(f / "whole", f / "parts") == "");
      if (dtype != "fp32") continue;
      REQUIRE(train("other", {"--train.seed=2"}).code == 0);
      CHECK(difference(f / "whole", f / "other") != "");  // the control

      const Json first = parse_json(
          slurp(f / "whole/metrics.jsonl").substr(0, slurp(f / "whole/metrics.jsonl").find('\n')), "", Exit::internal);
      const Json end = last_line(lathe_in(f, {"eval", "whole"}));
      const char* figure = kind.data == "numbers" ? "mse" : "val_loss";
      CHECK(end[figure].get<double>() < 0.85 * first[figure].get<double>());
      CHECK(end.contains(kind.data == "text" ? "tokens" : "samples"));
      if (kind.data == "images") CHECK(end["accuracy"].get<double>() > 0.7);
      if (kind.data == "numbers") CHECK(end.contains("mae"));
      // What was saved is what was evaluated at the end of training, running statistics included.
      const RunState state = read_state(list_checkpoints(f / "whole").at(0));
      CHECK(end[figure].get<double>() == Approx(*state.val_loss).epsilon(1e-6));
      CHECK(lathe_in(f, {"verify", "whole"}).code == 0);
      CHECK_THAT(lathe_in(f, {"inspect", "whole"}).out, ContainsSubstring("step 60"));
      CHECK_THAT(lathe_in(f, {"plan", "kind.toml"}).out, ContainsSubstring("time of a step"));
      CHECK(last_line(lathe_in(f, {"bench", "step", "kind.toml", "--train.steps=4"})).contains("ms_median"));
      const Finished written = lathe_in(f, {"generate", "whole", "--tokens=5"});
      if (kind.data == "text")
        CHECK(written.code == 0);
      else
        CHECK_THAT(written.err, ContainsSubstring("does not model text: it is a " + kind.name));
    }
  }
}

TEST_CASE("micro-batches add up to the batch", "[kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    if (kind.keys.find("batch") != std::string::npos || kind.name == "convnet") continue;  // statistics are a batch's
    INFO(kind.name << " on " << kind.data);
    write_config(f, kind);
    const auto losses = [&](const std::string& out, const std::string& rows, const std::string& micro) {
      REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=" + out, "--train.batch_size=" + rows,
                           "--train.grad_accum=" + micro, "--train.steps=6", "--train.eval_interval=0"})
                  .code == 0);
      std::vector<double> all;
      std::istringstream lines(slurp(f / out / "metrics.jsonl"));
      for (std::string line; std::getline(lines, line);) all.push_back(parse_json(line, "", Exit::internal)["loss"]);
      fs::remove_all(f / out);
      return all;
    };
    const auto one = losses("one", "8", "1"), four = losses("four", "2", "4"), less = losses("less", "2", "3");
    REQUIRE(one.size() == 6);
    for (size_t i = 0; i < 6; ++i) CHECK(four[i] == Approx(one[i]).epsilon(1e-4));  // six steps of float32 rounding
    CHECK(less[0] != Approx(one[0]).epsilon(1e-4));                                 // the control: other samples
  }
}

TEST_CASE("what does not go together is one sentence", "[kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--model.n_head=2"}, "model.n_head is a key of model.kind = \"gpt\", and this model's is \"mlp\""},
      {{"--model.kind=nonsense"}, "model.kind = \"nonsense\" is not allowed; it must be gpt | rnn | mlp | convnet"},
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
  write_config(f, kinds[3]);
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.dir=images"}).err,
             ContainsSubstring("model.kind = \"rnn\" models tokens, and images holds examples"));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--amp.dtype=fp8", "--model.n_layer=4", "--train.batch_size=8",
                          "--model.block_size=16"})
                 .err,
             ContainsSubstring("has none; use \"bf16\""));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.flip=true"}).err, ContainsSubstring("are for examples"));
}

TEST_CASE("adapters stand on any kind", "[kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, {"mlp", "images", "n_hidden = 16\n"});
  REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.out_dir=base", "--train.steps=20"}).code == 0);
  const Finished tuned =
      lathe_in(f, {"train", "kind.toml", "--train.out_dir=tuned", "--adapters.rank=2", "--adapters.base=base"});
  INFO(tuned.out << tuned.err);
  REQUIRE(tuned.code == 0);
  const double before = last_line(lathe_in(f, {"eval", "base"}))["val_loss"];
  const double after = last_line(lathe_in(f, {"eval", "tuned"}))["val_loss"];
  CHECK(after < before);
  REQUIRE(lathe_in(f, {"merge", "tuned", "--out", "merged"}).code == 0);
  CHECK(last_line(lathe_in(f, {"eval", "merged"}))["val_loss"].get<double>() == Approx(after).epsilon(1e-5));
}

}  // namespace
