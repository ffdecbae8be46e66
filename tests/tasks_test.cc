// Micro-batches, adapters and bad input of kinds and tasks, through the whole trainer.
#include <algorithm>
#include <sstream>

#include "tests/kinds.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("micro-batches add up to the batch", "[tasks]") {
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
    CHECK(less[5] != Approx(one[5]).epsilon(1e-4));                                 // the control: fewer samples
  }
}

TEST_CASE("what does not go together is one sentence", "[tasks]") {
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(f, kinds[0]);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--model.n_head=2"}, "model.n_head is a key of model.kind = \"gpt\", and this model's is \"mlp\""},
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
  write_config(f, *std::find_if(kinds.begin(), kinds.end(), [](const Kind& k) { return k.name == "rnn"; }));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.dir=images"}).err,
             ContainsSubstring("model.kind = \"rnn\" models tokens, and images holds examples"));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--amp.dtype=fp8", "--model.n_layer=4", "--train.batch_size=8",
                          "--model.block_size=16"})
                 .err,
             ContainsSubstring("has none; use \"bf16\""));
  CHECK_THAT(lathe_in(f, {"train", "kind.toml", "--data.flip=true"}).err, ContainsSubstring("are for examples"));
}

TEST_CASE("adapters stand on any kind", "[tasks]") {
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
