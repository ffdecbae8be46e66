// Tests of run folders: the checkpoint that a run resumes from, and the files that a run keeps and
// never replaces. A branch is a run that starts from a checkpoint of another run, its parent.
#include <algorithm>
#include <cmath>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"
#include "train/store/run_folder.h"

namespace {

using namespace lathe;
using namespace lathe::test;

class Runs {
 public:
  Runs() { make_tiny_run(folder_.path()); }
  Finished train(std::vector<std::string> more = {},
                 const std::string& config = "tiny.toml") const {
    std::vector<std::string> args{"train", config};
    args.insert(args.end(), more.begin(), more.end());
    return lathe(std::move(args));
  }
  Finished lathe(std::vector<std::string> args) const {
    return run({"lathe", std::move(args), folder_.path(), {}});
  }
  fs::path operator/(const std::string& name) const { return folder_ / name; }
  const fs::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

std::vector<int64_t> steps_of(const fs::path& run) {
  std::vector<int64_t> out;
  for (const auto& path : list_checkpoints(run)) out.push_back(step_of(path));
  return out;
}

TEST_CASE(
    "the command that started a branch also resumes it, even if the parent has deleted the "
    "checkpoint or the project was moved",
    "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=20", "--checkpoint.keep=2"}).code == 0);
  const std::string from = "--checkpoint.resume=runs/tiny/checkpoints/step-00000010";
  REQUIRE(r.train({from, "--train.out_dir=branch", "--train.max_time=0.001"}).code == 75);
  const std::vector<int64_t> in_progress = steps_of(r / "branch");
  REQUIRE(in_progress.at(0) == 11);
  // The parent resumes, and deletes the checkpoint of step 10.
  REQUIRE(r.train({"--checkpoint.keep=1"}).code == 0);
  REQUIRE(!fs::exists(r / "runs/tiny/checkpoints/step-00000010"));
  const Finished pruned = r.train({from, "--train.out_dir=branch", "--train.max_time=0.001"});
  INFO(pruned.err);
  CHECK(pruned.code == 75);
  CHECK_THAT(pruned.out, ContainsSubstring("branch/checkpoints/step-00000011"));
  CHECK(steps_of(r / "branch").at(0) == 12);

  // After the project is moved, relative paths must still be valid.
  const TempFolder other;
  const fs::path moved = other / "project";
  fs::copy(r.path(), moved, fs::copy_options::recursive);
  const Finished elsewhere =
      run({"lathe", {"train", "tiny.toml", from, "--train.out_dir=branch"}, moved, {}});
  INFO(elsewhere.err);
  CHECK(elsewhere.code == 0);
  CHECK(steps_of(moved / "branch").at(0) == 40);

  // A branch can't resume from a checkpoint other than the one it started from.
  const Finished another = r.train({"--checkpoint.resume=runs/tiny", "--train.out_dir=branch"});
  CHECK(another.code == 2);
  CHECK_THAT(another.err, ContainsSubstring("step-00000012") && ContainsSubstring("runs/tiny") &&
                              ContainsSubstring("--train.out_dir"));

  // A checkpoint that does not exist is an error, whatever the branch contains.
  for (const char* gone :
       {"runs/gone/checkpoints/step-00000010", "runs/tiny/checkpoints/step-00000009"}) {
    const Finished missing = r.train({str("--checkpoint.resume=", gone), "--train.out_dir=branch"});
    CHECK(missing.code == 4);
    CHECK_THAT(missing.err, ContainsSubstring(gone) && ContainsSubstring("neither"));
  }
}

TEST_CASE("a run that is resumed by its own config.toml keeps its owner", "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.pause_at=3"}).code == 75);
  REQUIRE(r.train({"--train.pause_at=6"}, "runs/tiny/config.toml").code == 75);
  const Finished again = r.train({"--train.pause_at=8"});
  INFO(again.err);
  CHECK(again.code == 75);
  CHECK(steps_of(r / "runs/tiny").at(0) == 8);
  // Another config of the same name is still refused.
  fs::create_directories(r / "other");
  write_file(r / "other/tiny.toml", slurp(r / "tiny.toml"));
  CHECK(r.train({}, "other/tiny.toml").code == 2);
}

TEST_CASE("torchrun's restart of a run that refused to start is refused again", "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.pause_at=3"}).code == 75);
  const auto start = [&](const char* variable) {
    return run({"lathe",
                {"train", "tiny.toml", "--checkpoint.resume=never", "--train.pause_at=5"},
                r.path(),
                {{variable, "1"}}})
        .code;
  };
  CHECK(start("TORCHELASTIC_RESTART_COUNT") == 2);
  CHECK(steps_of(r / "runs/tiny").at(0) == 3);
  // `lathe launch` restarts only runs that began to train.
  CHECK(start("LATHE_RESTARTS") == 75);
}

TEST_CASE("a run stopped during its last evaluation evaluates once, when it resumes", "[resume]") {
  const Runs r;
  const std::string end = "--train.steps=3", whole = "--train.out_dir=whole",
                    cut = "--train.out_dir=cut";
  REQUIRE(r.train({end, whole}).code == 0);
  const std::string limit = "--train.max_time=0.001";
  for (int step = 1; step <= 3; ++step) REQUIRE(r.train({end, cut, limit}).code == 75);
  const fs::path last = r / "cut/checkpoints/step-00000003";
  REQUIRE(read_state(last).eval_due);
  CHECK(r.lathe({"inspect", "cut"}).code == 0);

  REQUIRE(r.train({end, cut}).code == 0);
  const RunState was = read_state(r / "whole/checkpoints/step-00000003"), is = read_state(last);
  CHECK(!is.eval_due);
  CHECK(is.val_loss == was.val_loss);
  const auto evaluations = [&](const char* run) {
    std::istringstream lines(slurp(r / run / "metrics.jsonl"));
    int found = 0;
    for (std::string line; std::getline(lines, line);)
      found += line.find("\"val_loss\"") != std::string::npos ? 1 : 0;
    return found;
  };
  CHECK(evaluations("cut") == evaluations("whole"));
  CHECK(is.best_step == was.best_step);
  CHECK(r.lathe({"verify", "cut"}).code == 0);
  CHECK(r.lathe({"eval", "cut", "--checkpoint=best"}).code == 0);
  for (const auto& path : fs::directory_iterator(r / "cut/checkpoints"))
    CHECK_THAT(path.path().filename().string(), Catch::Matchers::StartsWith("step-"));
  CHECK_THAT(r.train({end, cut}).out,
             ContainsSubstring("cut/checkpoints/step-00000003") && ContainsSubstring("nothing"));
}

TEST_CASE("a branch recognizes the checkpoint that it started from, even under another path",
          "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=20"}).code == 0);
  const std::string out = "--train.out_dir=branch", step = "/checkpoints/step-00000010";
  REQUIRE(r.train({"--checkpoint.resume=runs/tiny" + step, out, "--train.max_time=0.001"}).code ==
          75);
  const std::string whole = (r / "runs/tiny").string();
  CHECK(r.train({"--checkpoint.resume=" + whole + step, out, "--train.max_time=0.001"}).code == 75);
  CHECK(r.train({"--checkpoint.resume=" + whole + "/checkpoints/step-00000020", out}).code == 2);
}

TEST_CASE(
    "starting a finished run again does not change its config.toml or log, and lists the keys "
    "that differ",
    "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=10"}).code == 0);
  const std::string record = slurp(r / "runs/tiny/config.toml"),
                    log = slurp(r / "runs/tiny/log.txt");
  const Finished again = r.train({"--train.steps=10", "--optim.lr=0.5"});
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("runs/tiny/checkpoints/step-00000010") &&
                            ContainsSubstring("optim.lr 0.001 -> 0.5"));
  CHECK(slurp(r / "runs/tiny/config.toml") == record);
  CHECK(slurp(r / "runs/tiny/log.txt") == log);

  const std::string constant = "--schedule.kind=constant";
  REQUIRE(r.train({"--train.steps=14", "--optim.lr=0.002", constant}).code == 0);
  REQUIRE(r.train({"--train.steps=16", "--optim.lr=0.003", constant}).code == 0);
  const std::string now = slurp(r / "runs/tiny/config.toml");
  CHECK_THAT(now, ContainsSubstring("lr = 0.003"));
  CHECK_THAT(now, ContainsSubstring("#   after step 10: optim.lr 0.001 -> 0.002"));
  CHECK_THAT(now, ContainsSubstring("#   after step 14: optim.lr 0.002 -> 0.003"));
  const std::string metrics = slurp(r / "runs/tiny/metrics.jsonl");
  CHECK_THAT(metrics, ContainsSubstring(R"({"step":14,"changed":{)"));
  CHECK_THAT(metrics, ContainsSubstring(R"("optim.lr":{"was":"0.002","is":"0.003"})"));
}

TEST_CASE(
    "two configs with the same file name do not share a run folder unless the user requests it",
    "[resume]") {
  const Runs r;
  make_folders(r / "other");
  fs::copy(r / "tiny.toml", r / "other/tiny.toml");
  REQUIRE(r.train({"--train.steps=2"}).code == 0);
  const Finished other = r.train({"--train.steps=4"}, "other/tiny.toml");
  CHECK(other.code == 2);
  CHECK_THAT(other.err, ContainsSubstring("other/tiny.toml") &&
                            ContainsSubstring("--train.out_dir=runs/tiny"));
  CHECK(r.train({"--train.steps=4"}, (r / "tiny.toml").string()).code ==
        0);  // the same config, given by an absolute path
  CHECK(r.train({"--train.steps=6", "--train.out_dir=runs/tiny"}, "other/tiny.toml").code == 0);
}

TEST_CASE("files that lathe did not write are not replaced, and backups of metrics are numbered",
          "[resume]") {
  const Runs r;
  make_folders(r / "mine");
  const std::string own = "# my notes\n" + slurp(r / "tiny.toml");
  write_file(r / "mine/config.toml", own);
  const Finished refused = r.train({"--train.out_dir=mine", "--train.steps=2"}, "mine/config.toml");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err,
             ContainsSubstring("mine/config.toml") && ContainsSubstring("--train.out_dir"));
  CHECK(slurp(r / "mine/config.toml") == own);
  CHECK(std::distance(fs::directory_iterator(r / "mine"), fs::directory_iterator()) == 1);

  // Imitate three crashes before the first checkpoint. Each leaves its lines of metrics.
  for (const char* lines : {"first\n", "second\n", "third\n"}) {
    fs::remove_all(r / "runs/tiny/checkpoints");
    make_folders(r / "runs/tiny");
    write_file(r / "runs/tiny/metrics.jsonl", lines);
    CHECK(r.train({"--train.steps=1"}).code == 0);
  }
  CHECK(slurp(r / "runs/tiny/metrics.jsonl.old") == "first\n");
  CHECK(slurp(r / "runs/tiny/metrics.jsonl.old.2") == "second\n");
  CHECK(slurp(r / "runs/tiny/metrics.jsonl.old.3") == "third\n");
}

TEST_CASE("the step in a checkpoint's state counts, not the step in the name of its folder",
          "[resume]") {
  const Runs r;
  const std::string constant = "--schedule.kind=constant";
  REQUIRE(r.train({"--train.steps=20", constant}).code == 0);
  REQUIRE(r.train({"--train.out_dir=whole", constant}).code == 0);
  fs::rename(r / "runs/tiny/checkpoints/step-00000010", r / "runs/tiny/checkpoints/step-00000030");
  CHECK(steps_of(r / "runs/tiny") == std::vector<int64_t>{20, 10});
  const Finished on = r.train({constant});
  CHECK_THAT(on.out, ContainsSubstring("runs/tiny/checkpoints/step-00000020"));
  CHECK(on.code == 0);
  CHECK(difference(r / "whole", r / "runs/tiny") == "");
  fs::rename(r / "runs/tiny", r / "step-by-step");
  CHECK(r.lathe({"eval", "step-by-step"}).code == 0);
}

TEST_CASE("the best checkpoint and every n-th checkpoint are kept in addition to the newest ones",
          "[resume]") {
  CHECK(steps_to_delete({50, 40, 30, 20, 10}, {.newest = 2}, -1) ==
        std::vector<int64_t>{30, 20, 10});
  CHECK(steps_to_delete({50, 40, 30, 20, 10}, {.newest = 1, .every = 20}, -1) ==
        std::vector<int64_t>{30, 10});
  CHECK(steps_to_delete({50, 40, 30, 20, 10}, {.newest = 1, .best = true}, 30) ==
        std::vector<int64_t>{40, 20, 10});
  CHECK(steps_to_delete({50, 40}, {.newest = 3}, -1).empty());

  const Runs r;
  // With this learning rate the loss falls at first and then diverges, so the best checkpoint comes
  // early.
  const std::vector<std::string> options{
      "--train.steps=24",         "--train.eval_interval=4",    "--checkpoint.interval=10",
      "--checkpoint.keep=1",      "--checkpoint.keep_every=10", "--checkpoint.keep_best=true",
      "--schedule.kind=constant", "--schedule.warmup_steps=20", "--optim.lr=0.5"};
  REQUIRE(r.train(options).code == 0);
  const RunState last = read_state(list_checkpoints(r / "runs/tiny").at(0));
  REQUIRE(last.best_step > 0);
  REQUIRE(last.best_step < 24);
  std::vector<int64_t> wanted{24, 20, 10, last.best_step};
  std::sort(wanted.begin(), wanted.end(), std::greater<>());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  CHECK(steps_of(r / "runs/tiny") == wanted);
  CHECK(step_of(find_checkpoint(r / "runs/tiny", "best")) == last.best_step);
  CHECK(step_of(find_checkpoint(r / "runs/tiny", "step-00000010")) == 10);
  CHECK_THROWS_AS(find_checkpoint(r / "runs/tiny", "step-00000011"), Error);
}

TEST_CASE("a validation loss that is NaN does not remain the best", "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=20", "--train.pause_at=5"}).code == 75);

  // Change the state as if the evaluation before the first step had given NaN.
  const fs::path checkpoint = find_checkpoint(r / "runs/tiny");
  RunState state = read_state(checkpoint);
  REQUIRE(state.best_step == 0);
  state.val_loss = state.best_val_loss = std::nan("");
  {
    const SafetensorsFile model(checkpoint / "model.safetensors"),
        optimizer(checkpoint / "optimizer.safetensors");
    Snapshot snapshot;
    snapshot.model = model.tensors();
    snapshot.optimizer = optimizer.tensors();
    write_checkpoint(checkpoint, state, snapshot);
  }
  REQUIRE(std::isnan(*read_state(checkpoint).best_val_loss));

  REQUIRE(r.train({"--train.steps=20"}).code == 0);
  const RunState last = read_state(find_checkpoint(r / "runs/tiny"));
  CHECK(last.best_val_loss < 100);
  CHECK(last.best_step >= 10);
}

TEST_CASE("eval can use a chosen checkpoint, and --verify-data checks all data before training",
          "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=4", "--checkpoint.interval=2", "--verify-data=true"}).code == 0);
  const Finished named = r.lathe({"eval", "runs/tiny", "--checkpoint", "step-00000002"});
  CHECK(named.code == 0);
  CHECK(named.out != r.lathe({"eval", "runs/tiny"}).out);
  CHECK(r.lathe({"eval", "runs/tiny", "--checkpoint=step-00000003"}).code == 4);
  CHECK(r.lathe({"eval", "runs/tiny/checkpoints/step-00000002", "--checkpoint=best"}).code == 2);
  std::string bytes = slurp(r / "data/train.bin");
  std::swap(bytes[100], bytes[102]);
  write_file(r / "data/train.bin", bytes);
  const Finished changed = r.train({"--train.out_dir=other", "--verify-data=true"});
  CHECK(changed.code == 3);
  CHECK_THAT(changed.err, ContainsSubstring("train.bin"));
  CHECK(!fs::exists(r / "other"));
}

TEST_CASE("weights that are not finite are never saved", "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=4", "--checkpoint.interval=2"}).code == 0);
  const Finished ruined = r.train({"--train.steps=5", "--checkpoint.interval=2", "--optim.lr=1e38",
                                   "--optim.weight_decay=1e38", "--schedule.kind=constant"});
  INFO(ruined.out << ruined.err);
  CHECK(ruined.code == 5);
  CHECK(steps_of(r / "runs/tiny") == std::vector<int64_t>{4, 2});
  CHECK(r.lathe({"verify", "runs/tiny"}).code == 0);

  // If a run is damaged, `lathe verify` also names the intact checkpoints.
  const fs::path damaged = r / "runs/tiny/checkpoints/step-00000004/model.safetensors";
  std::string bytes = slurp(damaged);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(damaged, bytes);
  const Finished verified = r.lathe({"verify", "runs/tiny"});
  CHECK(verified.code == 4);
  CHECK_THAT(verified.err, ContainsSubstring("step-00000004/model.safetensors") &&
                               ContainsSubstring("checksum") &&
                               ContainsSubstring("intact: step-00000002"));
}

TEST_CASE("a warning names weights beyond the range of checkpoint.dtype", "[resume]") {
  const Runs r;
  for (const auto& [dtype, lr] : {std::pair{"fp16", "1e6"}, {"bf16", "1e6"}, {"fp16", "1e-3"}}) {
    INFO(dtype << " " << lr);
    fs::remove_all(r / "runs/tiny");
    const Finished done =
        r.train({"--train.steps=1", "--train.eval_interval=0", "--schedule.kind=constant",
                 str("--optim.lr=", lr), str("--checkpoint.dtype=", dtype)});
    CHECK(done.code == 0);
    const bool exceeds = std::string(dtype) == "fp16" && std::string(lr) == "1e6";
    CHECK((done.err.find("checkpoint.dtype = \"bf16\"") != std::string::npos) == exceeds);
  }
}

TEST_CASE("lost metrics do not stop a run, but a lock file that is missing or replaced does",
          "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=4", "--checkpoint.interval=2"}).code == 0);
  const std::string metrics = slurp(r / "runs/tiny/metrics.jsonl");
  write_file(r / "runs/tiny/metrics.jsonl",
             metrics.substr(0, metrics.size() - 5));  // the last line is now incomplete
  const Finished shorter = r.train({"--train.steps=6"});
  CHECK(shorter.code == 0);
  CHECK_THAT(shorter.err, ContainsSubstring("runs/tiny/metrics.jsonl") &&
                              ContainsSubstring(str(metrics.size() - 5, " bytes")));
  const std::string after = slurp(r / "runs/tiny/metrics.jsonl");
  CHECK(after.starts_with(metrics.substr(0, metrics.rfind('\n', metrics.size() - 2) + 1) + "{"));
  fs::remove(r / "runs/tiny/metrics.jsonl");
  CHECK(r.train({"--train.steps=8"}).code == 0);
  CHECK_THAT(slurp(r / "runs/tiny/metrics.jsonl"), ContainsSubstring("\"step\":8"));

  TempFolder held;
  const FolderLock lock(held / ".");
  lock.check_in_place();
  fs::remove(held / "lock");
  CHECK_THROWS_AS(lock.check_in_place(), Error);
  write_file(held / "lock", "");
  CHECK_THROWS_AS(lock.check_in_place(), Error);
}

TEST_CASE("the best validation loss survives a resume", "[resume]") {
  const Runs r;
  REQUIRE(r.train({"--train.steps=10", "--schedule.kind=constant"}).code == 0);
  const double best = *read_state(list_checkpoints(r / "runs/tiny").at(0)).best_val_loss;
  REQUIRE(r.train({"--train.steps=20", "--schedule.kind=constant", "--optim.lr=3"}).code == 0);
  const RunState state = read_state(list_checkpoints(r / "runs/tiny").at(0));
  CHECK(*state.val_loss > best);
  CHECK(*state.best_val_loss == best);
  CHECK(state.best_step == 10);

  // A branch makes its own evaluations, and keeps the best of them.
  const std::string from =
      "--checkpoint.resume=" + (r / "runs/tiny/checkpoints/step-00000010").string();
  REQUIRE(r.train({from, "--train.out_dir=branch", "--train.steps=30", "--optim.lr=3",
                   "--schedule.kind=constant", "--checkpoint.keep_best=true"})
              .code == 0);
  const RunState branch = read_state(list_checkpoints(r / "branch").at(0));
  CHECK(branch.best_step > 10);
  CHECK(step_of(find_checkpoint(r / "branch", "best")) == branch.best_step);
}

}  // namespace
