#include "tests/support/catch.h"
// This must follow Catch2; see tests/support/catch.h.
#include "tests/train/loop/trials.h"

#include <optional>
#include <utility>

#include "train/store/checkpoint.h"

namespace lathe::test {
namespace {

/// Returns the step in the report of a process about its start: the step that it resumes from, or
/// the step that the run ended with. Returns 0 for a new run, and nullopt if the process was killed
/// before the report.
std::optional<int64_t> resumed_from(const Finished& f) {
  size_t line = f.out.find("\nrun       ");
  const bool finished = line == std::string::npos;
  if (finished) line = f.out.find("\nnothing to do: the run ended with ");
  const size_t end = line == std::string::npos ? line : f.out.find('\n', line + 1);
  if (end == std::string::npos) return std::nullopt;
  const std::string refusal = f.out.substr(line, end - line);
  const size_t from = refusal.find(", resuming from ");
  return from == std::string::npos && !finished
             ? 0
             : std::stoll(refusal.substr(refusal.rfind("step-") + 5));
}

}  // namespace

Trials::Trials(std::vector<std::string> args, std::map<std::string, std::string> environment) {
  make_tiny_run(folder_.path());
  const Finished f = start("reference", {});
  if (f.code != 0) fail(Exit::internal, "the reference run: ", f.err);
  seconds_ = f.seconds;
  args_ = std::move(args);
  environment_ = std::move(environment);
}

Finished Trials::start(const std::string& run,
                       const std::map<std::string, std::string>& environment,
                       double kill_after) const {
  std::vector<std::string> words{"train", "tiny.toml", "--train.out_dir=" + run};
  words.insert(words.end(), args_.begin(), args_.end());
  std::map<std::string, std::string> all = environment_;
  all.insert(environment.begin(), environment.end());
  return lathe::test::run({"lathe_faults", words, folder_.path(), all, kill_after});
}

int64_t Trials::newest(const std::string& run) const {
  const auto all = list_checkpoints(folder_ / run);
  for (const auto& path : all) CHECK_NOTHROW(verify_checkpoint(path));
  return all.empty() ? 0 : std::stoll(all[0].filename().string().substr(5));
}

bool Trials::trial(const std::vector<Kill>& kills) {
  const std::string name = "run" + std::to_string(n_++);
  bool struck = false;
  int64_t have = 0;

  for (const auto& [point, amount, expected] : kills) {
    const Finished f =
        point.empty()
            ? start(name, {}, amount)
            : start(name,
                    {{"LATHE_TEST_KILL", point + " " + std::to_string(static_cast<int>(amount))}});
    INFO(point << " " << amount << ": " << f.out << f.err);
    CHECK((f.code == killed || f.code == 0));

    struck = struck || f.code == killed;
    const auto from = resumed_from(f);
    CHECK(from.value_or(have) == have);
    if (!point.empty() && !point.starts_with("start: ")) CHECK(from);

    const int64_t has = newest(name);
    CHECK(has >= have);
    if (expected >= 0) CHECK(has == expected);
    have = has;
  }

  if (struck) {
    const Finished f = start(name, {});
    INFO("killed at " << kills[0].point << " " << kills[0].amount << ", finished: " << f.err
                      << f.out);
    CHECK(f.code == 0);
    CHECK(resumed_from(f) == have);
    CHECK(difference(folder_ / "reference", folder_ / name) == "");
    // No incomplete checkpoint is left.
    CHECK(list_folder(folder_ / name / "checkpoints").size() ==
          list_checkpoints(folder_ / name).size());
  }

  std::error_code error;
  fs::remove_all(folder_ / name, error);
  return struck;
}

}  // namespace lathe::test
