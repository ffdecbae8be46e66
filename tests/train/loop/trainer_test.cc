// Tests of the trainer through the command line: signals, time limits, resume rules, checkpoints,
// samples.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"
#include "train/tasks/generate.h"

#include <ATen/ops/tensor.h>

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a run writes its files, and running it again reports that it is finished", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished first = lathe_in(f, {"train", "tiny.toml"});
  INFO(first.err);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.out, ContainsSubstring("step 0  validation loss"));
  CHECK_THAT(first.out, ContainsSubstring("finished  40 steps"));
  for (const char* name :
       {"config.toml", "metrics.jsonl", "log.txt", "checkpoints/step-00000040/manifest.json"})
    CHECK(fs::exists(f / "runs/tiny" / name));
  CHECK(list_checkpoints(f / "runs/tiny").size() == 2);
  const Json line = parse_json(slurp(f / "runs/tiny/metrics.jsonl")
                                   .substr(0, slurp(f / "runs/tiny/metrics.jsonl").find('\n')),
                               "", Exit::internal);
  CHECK(line["step"] == 0);
  CHECK(line.contains("val_loss"));

  const Finished again = lathe_in(f, {"train", "tiny.toml"});
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("finished  40 steps"));
  const Finished never = lathe_in(f, {"train", "tiny.toml", "--checkpoint.resume=never"});
  CHECK(never.code == 2);
  CHECK_THAT(never.err, ContainsSubstring("checkpoint.resume = \"never\"") &&
                            ContainsSubstring("step-00000040"));

  const Finished eval = lathe_in(f, {"eval", "runs/tiny"});
  REQUIRE(eval.code == 0);
  const Json result = parse_json(eval.out, "", Exit::internal);
  CHECK(result["tokens"] == 1999);
  CHECK(lathe_in(f, {"verify", "runs/tiny"}).code == 0);
  CHECK(lathe_in(f, {"verify", "data"}).code == 0);
  CHECK_THAT(lathe_in(f, {"inspect", "runs/tiny"}).out, ContainsSubstring("step 40"));
  CHECK_THAT(lathe_in(f, {"inspect", "runs/tiny/checkpoints/step-00000040"}).out,
             ContainsSubstring("blocks.1.mlp.down.weight  F32 [16,64]"));
  const auto text =
      lathe_in(f, {"generate", "runs/tiny", "--prompt", "the ", "--tokens", "40", "--seed", "3"});
  CHECK(text.code == 0);
  CHECK(text.out.size() == 4 + 40 + 1);
  CHECK(lathe_in(f, {"generate", "runs/tiny", "--prompt=the ", "--tokens=40", "--seed=3"}).out ==
        text.out);
  CHECK(lathe_in(f, {"generate", "runs/tiny", "--prompt=the ", "--tokens=40", "--seed=4"}).out !=
        text.out);
}

TEST_CASE(
    "a run that a signal or the time limit stops writes a checkpoint and exits with 75, and ends "
    "with bitwise the same results when the same command resumes it",
    "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::vector<std::string> more{"--train.steps=300", "--checkpoint.interval=0"};
  const auto command = [&](const std::string& out, std::vector<std::string> extra = {}) {
    std::vector<std::string> args{"train", "tiny.toml", "--train.out_dir=" + out};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), extra.begin(), extra.end());
    return args;
  };

  REQUIRE(lathe_in(f, command("whole")).code == 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const std::string out = "stopped" + std::to_string(signal);
    const Finished stopped = run({.binary = "lathe",
                                  .args = command(out),
                                  .folder = f.path(),
                                  .environment = {},
                                  .signal = signal});
    INFO(stopped.out << stopped.err);
    CHECK(stopped.code == 75);
    CHECK_THAT(stopped.out, ContainsSubstring("signal"));
    CHECK(lathe_in(f, command(out)).code == 0);
    CHECK(difference(f / "whole", f / out) == "");
  }

  // The time limit applies to each start.
  int64_t trained = 0;
  for (int start = 0; start < 2; ++start) {
    CHECK(lathe_in(f, command("limited", {"--train.max_time=0.05"})).code == 75);
    const int64_t step = step_of(list_checkpoints(f / "limited").at(0));
    CHECK(step > trained);
    trained = step;
  }
  CHECK(trained < step_of(list_checkpoints(f / "whole").at(0)));
  CHECK(lathe_in(f, command("limited")).code == 0);
  CHECK(difference(f / "whole", f / "limited") == "");
}

TEST_CASE("a signal interrupts an evaluation, and the resumed run begins with this evaluation",
          "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  write_file(f / "long.txt", sample_text(4'000'000));
  REQUIRE(
      lathe_in(f, {"prepare", "long.txt", "--out", "long", "--tokenizer", "char", "--val", "0.5"})
          .code == 0);
  const auto command = [](const std::string& out, const std::string& eval_batches) {
    return std::vector<std::string>{"train",
                                    "tiny.toml",
                                    "--data.dir=long",
                                    "--train.out_dir=" + out,
                                    "--train.steps=4",
                                    "--train.eval_interval=2",
                                    "--train.eval_batches=" + eval_batches};
  };
  REQUIRE(lathe_in(f, command("whole", "20")).code == 0);

  // An evaluation of the complete split takes seconds. The signal comes before its end.
  const auto stopped_early = [&] {
    return run({.binary = "lathe",
                .args = command("cut", "0"),
                .folder = f.path(),
                .environment = {},
                .signal = SIGTERM,
                .signal_after = "run       "});
  };
  Finished stopped = stopped_early();
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 75);
  CHECK(stopped.out.find("validation loss") == std::string::npos);
  CHECK(list_checkpoints(f / "cut").at(0).filename() == "step-00000000");

  // A run that no longer evaluates does not repeat the evaluation.
  fs::copy(f / "cut", f / "without", fs::copy_options::recursive);
  auto without = command("without", "20");
  std::ranges::replace(without, "--train.eval_interval=2", "--train.eval_interval=0");
  const Finished unevaluated = lathe_in(f, without);
  CHECK(unevaluated.code == 0);
  CHECK(unevaluated.out.find("validation loss") == std::string::npos);

  // Interrupt the evaluation again, at the same step.
  stopped = stopped_early();
  CHECK(stopped.code == 75);
  CHECK(lathe_in(f, command("cut", "20")).code == 0);
  CHECK(difference(f / "whole", f / "cut") == "");
}

TEST_CASE("a bf16 run that is stopped and resumed has bitwise the same results", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path(), "[amp]\ndtype = \"bf16\"\n");
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=whole"}).code == 0);
  REQUIRE(
      lathe_in(f, {"train", "tiny.toml", "--train.out_dir=parts", "--train.max_time=0.01"}).code ==
      75);
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=parts"}).code == 0);
  CHECK(difference(f / "whole", f / "parts") == "");
}

TEST_CASE("a resume accepts changes of some keys and refuses changes of others", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=10"}).code == 0);
  const std::string before = slurp(f / "runs/tiny/metrics.jsonl");
  const auto refused = [&](const std::string& flag, const std::string& text) {
    const Finished r = lathe_in(f, {"train", "tiny.toml", "--train.steps=20", flag});
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring(text) && ContainsSubstring("--train.out_dir"));
    CHECK(slurp(f / "runs/tiny/metrics.jsonl") == before);
  };
  refused("--model.n_layer=3", "command line: model.n_layer = 3");
  refused("--train.seed=4", "train.seed = 4");
  refused("--train.batch_size=4", "train.batch_size = 4");
  refused("--amp.dtype=bf16", "amp.dtype = \"bf16\"");
  refused("--optim.kind=sgd", "optim.kind = \"sgd\"");
  write_file(f / "other.txt", sample_text(9000));
  REQUIRE(lathe_in(f, {"prepare", "other.txt", "--out", "other", "--tokenizer", "char"}).code == 0);
  refused("--data.dir=other", "hash ");

  const Finished free = lathe_in(f, {"train", "tiny.toml", "--train.steps=20", "--optim.lr=0.002"});
  CHECK(free.code == 0);
  CHECK_THAT(free.out, ContainsSubstring("optim.lr 0.001 -> 0.002"));
  const Finished threads =
      lathe_in(f, {"train", "tiny.toml", "--train.steps=22", "--train.threads=2"});
  CHECK(threads.code == 0);
  CHECK_THAT(threads.err, ContainsSubstring("1 thread ") && ContainsSubstring("bits"));
}

TEST_CASE(
    "train.early_stop ends a run that no longer improves, at the same step if the run is resumed",
    "[trainer]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  // At this high learning rate the loss soon stops falling.
  const auto train = [&](const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"train",
                                   "tiny.toml",
                                   "--train.out_dir=" + out,
                                   "--train.early_stop=3",
                                   "--train.eval_interval=2",
                                   "--schedule.kind=constant",
                                   "--optim.lr=0.3",
                                   "--schedule.warmup_steps=0",
                                   "--checkpoint.interval=4"};
    for (const std::string& key : more) {
      std::erase_if(words, [&](const std::string& word) {
        return word.starts_with(key.substr(0, key.find('=') + 1));
      });
      words.push_back(key);
    }
    return lathe_in(f, words);
  };
  const Finished whole = train("whole");
  INFO(whole.out << whole.err);
  REQUIRE(whole.code == 0);
  CHECK_THAT(whole.out, ContainsSubstring("train.early_stop"));

  // The run ends at the third evaluation after the best one, with a checkpoint.
  const fs::path last = list_checkpoints(f / "whole").at(0);
  const RunState state = read_state(last);
  CHECK(state.step < 40);
  CHECK(state.step == state.best_step + 6);
  CHECK(parse_json(lathe_in(f, {"runs", "whole", "--json"}).out, "", Exit::internal)[0]["state"] ==
        "finished");
  CHECK_THAT(train("whole").out, ContainsSubstring("nothing to do"));

  // A run that is paused after every step ends at the same step with bitwise the same results.
  for (int64_t pause = 1; pause < state.step; ++pause)
    REQUIRE(train("parts", {"--train.pause_at=" + std::to_string(pause)}).code == 75);
  CHECK(train("parts").code == 0);
  CHECK(difference(f / "whole", f / "parts") == "");

  // If train.early_stop is 0, a run trains all steps, and a run that has ended early continues.
  CHECK(train("all", {"--train.early_stop=0"}).out.find("train.early_stop") == std::string::npos);
  CHECK(read_state(list_checkpoints(f / "all").at(0)).step == 40);
  CHECK(train("whole", {"--train.early_stop=0"}).code == 0);
  CHECK(read_state(list_checkpoints(f / "whole").at(0)).step == 40);

  // All evaluations since the best one count, even those before train.eval_interval was changed.
  // Here, the evaluations are after steps 0, 4, 5 and 6, and the one after step 0 remains the best.
  const auto still = [&](const std::string& key) {
    return train("still",
                 {"--optim.lr=1e-30", key,
                  key == "--train.eval_interval=4" ? "--train.pause_at=4" : "--train.steps=40"});
  };
  CHECK(still("--train.eval_interval=4").code == 75);
  CHECK(still("--train.eval_interval=1").code == 0);
  CHECK(read_state(list_checkpoints(f / "still").at(0)).step == 6);

  const Finished refused = train("never", {"--train.eval_interval=0"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err,
             ContainsSubstring("train.early_stop") && ContainsSubstring("train.eval_interval"));
}

TEST_CASE("a warm-up that is not shorter than the run gives a warning", "[trainer]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto warned = [&](std::vector<std::string> words, const std::string& steps) {
    words.push_back("--schedule.warmup_steps=" + steps);
    const Finished r = lathe_in(f, words);
    INFO(r.out << r.err);
    CHECK(r.code == 0);
    return (r.out + r.err).find("schedule.warmup_steps = " + steps) != std::string::npos;
  };
  CHECK(warned({"config", "check", "tiny.toml"}, "40"));
  CHECK(!warned({"config", "check", "tiny.toml"}, "39"));
  CHECK(!warned({"config", "check", "tiny.toml", "--schedule.kind=one_cycle"}, "40"));
  CHECK(warned({"train", "tiny.toml", "--train.steps=2"}, "2"));
  CHECK(slurp(f / "runs/tiny/log.txt").find("schedule.warmup_steps = 2") != std::string::npos);
  CHECK(!warned({"train", "tiny.toml", "--train.steps=2", "--train.out_dir=b"}, "1"));
}

TEST_CASE("a run resumes from the newest checkpoint that verifies, and reports damaged ones",
          "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string constant = "--schedule.kind=constant";  // other schedules use train.steps
  REQUIRE(lathe_in(f, {"train", "tiny.toml", constant, "--train.steps=20"}).code == 0);
  REQUIRE(lathe_in(f, {"train", "tiny.toml", constant, "--train.out_dir=whole"}).code == 0);
  fs::resize_file(f / "runs/tiny/checkpoints/step-00000020/model.safetensors", 100);
  const Finished r = lathe_in(f, {"train", "tiny.toml", constant});
  INFO(r.err);
  CHECK(r.code == 0);
  CHECK_THAT(r.err, ContainsSubstring("step-00000020") && ContainsSubstring(" 100 bytes"));
  CHECK_THAT(r.out, ContainsSubstring("from runs/tiny/checkpoints/step-00000010"));
  CHECK(difference(f / "whole", f / "runs/tiny") == "");

  for (const auto& checkpoint : list_checkpoints(f / "runs/tiny")) {
    std::string bytes = slurp(checkpoint / "optimizer.safetensors");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(checkpoint / "optimizer.safetensors", bytes);
  }
  const Finished none = lathe_in(f, {"train", "tiny.toml"});
  CHECK(none.code == 4);
  CHECK_THAT(none.err, ContainsSubstring("optimizer.safetensors") && ContainsSubstring("checksum"));
  CHECK(list_checkpoints(f / "runs/tiny").size() == 2);
  CHECK(lathe_in(f, {"verify", "runs/tiny"}).code == 4);
  CHECK(lathe_in(f, {"eval", "runs/tiny"}).code == 4);
}

TEST_CASE("a run can continue from a checkpoint in another folder", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=20"}).code == 0);
  const Finished branch = lathe_in(f, {"train", "tiny.toml", "--train.out_dir=branch",
                                       "--checkpoint.resume=runs/tiny/checkpoints/step-00000010"});
  INFO(branch.err);
  CHECK(branch.code == 0);
  CHECK_THAT(slurp(f / "branch/metrics.jsonl"), ContainsSubstring("\"step\":11"));
  CHECK(list_checkpoints(f / "runs/tiny").size() == 2);
  const Finished branch_again =
      lathe_in(f, {"train", "tiny.toml", "--train.out_dir=branch", "--train.steps=45",
                   "--checkpoint.resume=runs/tiny/checkpoints/step-00000010/"});
  CHECK(branch_again.code == 0);
  CHECK_THAT(branch_again.out, ContainsSubstring("from branch/checkpoints/step-00000040"));
  const Finished back = lathe_in(
      f, {"train", "tiny.toml", "--checkpoint.resume=runs/tiny/checkpoints/step-00000010"});
  CHECK(back.code == 2);
  CHECK_THAT(back.err, ContainsSubstring("runs/tiny ") && ContainsSubstring("step-00000020"));
}

TEST_CASE("a run may be in a folder called checkpoints", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto train = [&](const char* steps) {
    return lathe_in(f, {"train", "tiny.toml", "--train.out_dir=checkpoints/a",
                        str("--train.steps=", steps), "--checkpoint.interval=2"});
  };
  REQUIRE(train("2").code == 0);
  const Finished more = train("4");
  INFO(more.out << more.err);
  CHECK(more.code == 0);
  CHECK_THAT(more.out, ContainsSubstring("step-00000002"));
  for (const char* command : {"inspect", "generate"}) {
    const Finished r = lathe_in(f, {command, "checkpoints/a"});
    INFO(r.out << r.err);
    CHECK(r.code == 0);
  }
  // The parent folder is not a run, although it has a folder called checkpoints.
  CHECK_THAT(lathe_in(f, {"runs", "."}).out, ContainsSubstring("checkpoints/a"));
  CHECK(lathe_in(f, {"inspect", "checkpoints/a/checkpoints/step-00000004"}).code == 0);
}

TEST_CASE("a damaged newer checkpoint is renamed, and does not displace an intact one",
          "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=20"}).code == 0);
  fs::resize_file(f / "runs/tiny/checkpoints/step-00000020/model.safetensors", 100);
  fs::copy(f / "runs/tiny/checkpoints/step-00000010",
           f / "runs/tiny/checkpoints/step-00000010-mine");
  const Finished r =
      lathe_in(f, {"train", "tiny.toml", "--checkpoint.keep=1", "--train.max_time=0.001"});
  INFO(r.err);
  CHECK(r.code == 75);
  CHECK(list_checkpoints(f / "runs/tiny").at(0).filename() == "step-00000011");
  CHECK(fs::exists(f / "runs/tiny/checkpoints/unusable-step-00000020"));
  CHECK(fs::exists(f / "runs/tiny/checkpoints/step-00000010-mine"));
  CHECK(lathe_in(f, {"train", "tiny.toml", "--train.steps=20"}).code == 0);
}

TEST_CASE("a run resumes from an older checkpoint even if the run in train.init_from was deleted",
          "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=source"}).code == 0);
  const std::vector<std::string> tune{"train", "tiny.toml", "--train.out_dir=tuned",
                                      "--train.init_from=source"};
  REQUIRE(lathe_in(f, tune).code == 0);
  const auto there = list_checkpoints(f / "tuned");
  REQUIRE(there.size() == 2);
  write_file(there[0] / "state.json", "{\"x\":");
  remove_tree(f / "source");
  const Finished resumed = lathe_in(f, tune);
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, ContainsSubstring(there[1].filename().string()));
}

TEST_CASE("metrics without a checkpoint are kept in metrics.jsonl.old", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=10"}).code == 0);
  const std::string before = slurp(f / "runs/tiny/metrics.jsonl");
  fs::remove_all(f / "runs/tiny/checkpoints");
  CHECK(lathe_in(f, {"train", "tiny.toml", "--train.steps=10"}).code == 0);
  CHECK(slurp(f / "runs/tiny/metrics.jsonl.old") == before);
}

TEST_CASE("a run folder in use is refused", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  make_folders(f / "runs/tiny");
  const FolderLock lock(f / "runs/tiny");
  const Finished r = lathe_in(f, {"train", "tiny.toml"});
  CHECK(r.code == 8);
  CHECK_THAT(r.err, ContainsSubstring("runs/tiny ") && ContainsSubstring("in use"));
}

TEST_CASE("a run that diverges ends with exit code 5 and keeps its checkpoints", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::vector<std::string> words{"train", "tiny.toml", "--optim.kind=sgd",
                                       "--optim.grad_clip=0", "--train.log_interval=1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return lathe_in(f, all);
  };
  REQUIRE(with({"--train.steps=4", "--checkpoint.interval=2"}).code == 0);
  const Finished r = with({"--train.steps=50", "--checkpoint.interval=50", "--optim.lr=1e30"});
  CHECK(r.code == 5);
  CHECK_THAT(r.err, ContainsSubstring("diverged") && ContainsSubstring("gradient norm"));

  // The checkpoint before the divergence is intact.
  const auto kept = list_checkpoints(f / "runs/tiny");
  REQUIRE(!kept.empty());
  CHECK(kept[0].filename() == "step-00000004");
  CHECK_NOTHROW(verify_checkpoint(kept[0]));
}

TEST_CASE("a run that ends without a finite loss has diverged", "[trainer]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto train = [&](const std::string& out, const std::string& lr,
                         std::vector<std::string> more) {
    std::vector<std::string> args{"train",
                                  "tiny.toml",
                                  "--train.out_dir=" + out,
                                  "--optim.kind=sgd",
                                  "--optim.lr=" + lr,
                                  "--optim.grad_clip=0",
                                  "--schedule.kind=constant",
                                  "--schedule.warmup_steps=0",
                                  "--train.sample_interval=0"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished r = lathe_in(f, args);
    INFO(out << r.out << r.err);
    return r;
  };
  const auto state = [&](const std::string& run) {
    const Finished r = lathe_in(f, {"runs", run, "--json=true"});
    REQUIRE(r.code == 0);
    return parse_json(r.out, "runs", Exit::internal).at(0)["state"].get<std::string>();
  };
  // The run has one step. The initial weights give its loss, and the updated weights have no finite
  // loss.
  const std::vector<std::vector<std::string>> saves{
      {},
      {"--checkpoint.interval=1"},
      {"--checkpoint.interval=1", "--checkpoint.async_save=true"},
      {"--checkpoint.keep_best=true"}};
  for (size_t i = 0; i < saves.size(); ++i) {
    const std::string out = "only" + std::to_string(i);
    auto more = saves[i];
    more.insert(more.end(), {"--train.steps=1", "--train.eval_interval=1"});
    for (int again = 0; again < 2; ++again) {
      const Finished r = train(out, "1e30", more);
      CHECK(r.code == 5);
      CHECK_THAT(r.err, ContainsSubstring("step 1,") && ContainsSubstring("validation loss nan") &&
                            ContainsSubstring("optim.lr"));
      CHECK(list_checkpoints(f / out).empty());
    }
    CHECK(state(out) == "diverged");
  }

  // If the last of several steps diverges, earlier checkpoints stay, and a run with a lower rate
  // resumes.
  const std::vector<std::string> five{"--train.steps=5", "--checkpoint.interval=1",
                                      "--train.eval_interval=5"};
  const std::vector<std::string> six{"--train.steps=6", "--checkpoint.interval=1",
                                     "--train.eval_interval=5", "--checkpoint.async_save=true"};
  REQUIRE(train("last", "1e-3", five).code == 0);
  CHECK(train("last", "1e30", six).code == 5);
  REQUIRE(!list_checkpoints(f / "last").empty());
  CHECK(read_state(list_checkpoints(f / "last").at(0)).step == 5);
  CHECK(state("last") == "diverged");
  CHECK(train("last", "1e-3", six).code == 0);
  CHECK(state("last") == "finished");

  // A scaler skips a step whose loss is not finite, but a run that ends with such a step has
  // diverged.
  const Finished scaled =
      train("scaled", "1e30", {"--train.steps=2", "--train.eval_interval=0", "--amp.dtype=fp16"});
  CHECK(scaled.code == 5);
  CHECK_THAT(scaled.err, ContainsSubstring("step 2,") && ContainsSubstring(": loss ") &&
                             ContainsSubstring("lathe replay"));
  CHECK(state("scaled") == "diverged");
  const Finished replayed = lathe_in(f, {"replay", "scaled"});
  INFO(replayed.out << replayed.err);
  CHECK(replayed.code == 0);
  CHECK_THAT(replayed.out, ContainsSubstring("finite"));
}

TEST_CASE("the config of a run with checkpoint.resume = \"never\" resumes the run", "[trainer]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::vector<std::string> first{"train", "tiny.toml", "--train.steps=10",
                                       "--checkpoint.resume=never"};
  REQUIRE(lathe_in(f, first).code == 0);
  CHECK(lathe_in(f, first).code == 2);
  const Finished longer = lathe_in(f, {"train", "runs/tiny/config.toml", "--train.steps=20"});
  INFO(longer.err);
  CHECK(longer.code == 0);
  CHECK(list_checkpoints(f / "runs/tiny").at(0).filename() == "step-00000020");
}

TEST_CASE("runs with several optimizers, schedules and initializations succeed", "[trainer]") {
  const TempFolder f;
  make_tiny_run(f.path());
  for (const char* kind : {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"}) {
    const std::string out = std::string("--train.out_dir=") + kind;
    CHECK(lathe_in(f, {"train", "tiny.toml", out, "--train.steps=20",
                       std::string("--optim.kind=") + kind})
              .code == 0);
    CHECK(lathe_in(f, {"train", "tiny.toml", out, "--train.steps=25",
                       std::string("--optim.kind=") + kind})
              .code == 0);  // the run resumes
  }
  for (const char* kind : {"constant", "linear", "wsd"}) {
    CHECK(lathe_in(f, {"train", "tiny.toml", std::string("--train.out_dir=") + kind,
                       "--train.steps=5", std::string("--schedule.kind=") + kind})
              .code == 0);
  }
  for (const char* init : {"xavier_uniform", "xavier_normal", "kaiming", "fan_in"}) {
    CHECK(lathe_in(f, {"train", "tiny.toml", std::string("--train.out_dir=") + init,
                       "--train.steps=5", std::string("--model.init=") + init})
              .code == 0);
  }
}

TEST_CASE("sample_token follows temperature 0, top-k and top-p", "[trainer]") {
  const at::Tensor logits = at::tensor(at::ArrayRef<double>{0, 3, 1, 2});
  CHECK(sample_token(logits, {.temperature = 0}, 0.99) == 1);
  CHECK(sample_token(logits, {.temperature = 1, .top_k = 2}, 0.999) == 3);
  CHECK(sample_token(logits, {.temperature = 1, .top_p = 0.5}, 0.999) ==
        1);  // the likeliest token has probability 0.64
  CHECK(sample_token(logits, {.temperature = 1}, 0.999) == 0);
  CHECK(sample_token(logits, {.temperature = 1}, 0.001) == 1);
}

TEST_CASE("reading a mapped file that was cut short ends the process with exit code 3",
          "[trainer]") {
  const TempFolder f;
  write_file(f / "text.bin", std::string(1 << 20, 'x'));
  const MappedFile map(f / "text.bin", Exit::data);
  const pid_t pid = fork();
  if (pid == 0) {
    fs::resize_file(f / "text.bin", 10);
    volatile auto byte = map.bytes()[1 << 19];
    (void)byte;
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WEXITSTATUS(status) == 3);
}

}  // namespace
