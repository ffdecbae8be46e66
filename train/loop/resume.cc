// Finds the checkpoint that a run resumes from. A branch recognizes the checkpoint that it began
// from by the checkpoint's path or by the checksum of the checkpoint's manifest; either is enough.
// Two configs with the same name in different folders have the same default run folder. state.json
// therefore stores the config's path relative to the working folder.
#include "train/loop/resume.h"

#include <algorithm>

#include "core/io/log.h"
#include "dist/placement.h"
#include "train/config/path_kind.h"
#include "train/store/run_folder.h"

namespace lathe {
namespace {

/// Throws Exit::usage if the default run folder already belongs to another config of the same name.
void check_same_config(const LoadedConfig& loaded, const RunState& state) {
  const std::string now = project_path(loaded.path);
  if (loaded.origins.contains("train.out_dir") || state.config_path.empty() ||
      state.config_path == now)
    return;
  const std::string& run = loaded.config.train.out_dir;
  fail(Exit::usage, run, " is the run of ", state.config_path, ", not of ", now,
       "; give this config another --train.out_dir, or --train.out_dir=", run,
       " to resume that run");
}

/// Returns the checkpoint that checkpoint.resume names or, if the run folder has a branch that
/// began from this checkpoint, the newest checkpoint of the branch. `there`: the checkpoints in the
/// run folder, newest first. Throws Exit::usage if the run folder belongs to another run or branch.
ResumePoint branch_point(const RunConfig& c, const std::vector<fs::path>& there) {
  const fs::path run = c.train.out_dir;
  const std::string typed = without_trailing_slash(c.checkpoint.resume).string();
  std::error_code error;
  const bool same_run = fs::equivalent(fs::path(typed).parent_path().parent_path(), run, error);
  if (!there.empty() && !(same_run && there.front().filename() == fs::path(typed).filename())) {
    // Once the branch has a checkpoint, the same command resumes the branch.
    const fs::path newest = *newest_checkpoint(run);
    RunState state = read_state(newest);
    const bool same_words = state.branched_from == typed;
    const auto same_contents = [&] {
      return !state.branched_id.empty() && fs::exists(typed) && is_checkpoint(typed) &&
             content_id(typed) == state.branched_id;
    };
    // Earlier builds recorded the absolute path.
    const auto same_place = [&] {
      return state.branched_from == fs::weakly_canonical(typed, error).string();
    };
    if (same_words || same_contents() || same_place()) return {newest, std::move(state)};
    find_checkpoint(typed);  // throws if there is no such checkpoint
    fail(Exit::usage, run.string(), " already holds ", there.front().filename().string(),
         ", which resuming from ", typed, " would replace; give another --train.out_dir");
  }

  const fs::path from = find_checkpoint(typed);
  ResumePoint point{.checkpoint = from, .state = read_state(from), .same_run = same_run};
  if (!same_run) {
    point.state.branched_from = typed;
    point.state.branched_id = content_id(from);
  }
  return point;
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const fs::path run = c.train.out_dir;
  const auto there = list_checkpoints(run);
  if (there.empty()) check_config_record(run);
  // `lathe launch` restarts only a run that it started itself, so the restart resumes that run,
  // even if checkpoint.resume is "never". torchrun also restarts a run that refused to start.
  const bool is_restart = restarts_from_environment() > 0;
  const std::string& resume = c.checkpoint.resume;
  if (resume == "never" && !is_restart) {
    if (!there.empty()) {
      fail(Exit::usage, "checkpoint.resume = \"never\", but ", run.string(), " holds ",
           there.front().filename().string(),
           "; give another --train.out_dir or leave checkpoint.resume out to resume");
    }
    return std::nullopt;
  }
  if (resume != "auto" && resume != "never") return branch_point(c, there);
  const auto newest = newest_checkpoint(run);
  if (!newest) return std::nullopt;
  ResumePoint point{*newest, read_state(*newest)};
  check_same_config(loaded, point.state);
  return point;
}

std::vector<ConfigChange> config_changes(const RunConfig& saved, const LoadedConfig& now,
                                         int64_t step) {
  std::vector<ConfigChange> changes;
  const auto keep = [&](const std::string& key, const std::string& was, const std::string& is) {
    fail(Exit::usage, origin_of(now, key), ": ", key, " = ", is, " but the run was started with ",
         was, "; a resumed run keeps ", was, " (or start a new run in another --train.out_dir)");
  };
  if (saved.model.kind != now.config.model.kind)
    keep("model.kind", toml_text(saved.model.kind), toml_text(now.config.model.kind));
  const Schema& keys = saved.schema();
  for (const auto& f : keys.fields()) {
    const std::string was = toml_text(keys.get(&saved, f)),
                      is = toml_text(keys.get(&now.config, f));
    if (was == is) continue;
    if (f.rule.is_fixed) keep(f.key, was, is);
    if (f.key != "checkpoint.resume" && f.key != "train.threads" && f.key != "train.pause_at")
      changes.push_back({.step = step, .key = f.key, .was = was, .is = is});
  }
  return changes;
}

}  // namespace lathe
