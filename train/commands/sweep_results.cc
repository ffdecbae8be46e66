#include "train/commands/sweep_results.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/io/log.h"
#include "core/io/text.h"
#include "train/commands/report.h"
#include "train/commands/table.h"
#include "train/store/checkpoint.h"

namespace lathe {
namespace {

constexpr size_t max_report_runs = 16;  // a report of more runs would be hard to read

std::string loss_text(double loss) { return std::isnan(loss) ? "-" : format("%.4f", loss); }

/// Returns how a point ended: "finished", "pruned", "diverged", ...
std::string state_text(const SweepPlan& plan, const PointState& s) {
  if (!s.end.empty()) return s.end;
  return s.losses.size() == plan.rungs.size() ? "finished" : "pruned";
}

std::string points_table(const SweepPlan& plan, const std::vector<std::string>& names,
                         const std::vector<PointState>& states) {
  std::vector<std::string> head;
  for (const auto& [key, value] : plan.points.at(0)) head.push_back(key);
  if (plan.rungs.size() > 1) head.emplace_back("step");
  head.insert(head.end(), {"val loss", "state", "run"});
  TextTable table(head);

  for (const size_t i : ranking(states)) {
    const PointState& s = states[i];
    std::vector<std::string> row;
    for (const auto& [key, value] : plan.points[i]) row.push_back(value);
    if (plan.rungs.size() > 1)
      row.push_back(s.losses.empty() ? "-" : std::to_string(plan.rungs[s.losses.size() - 1]));
    row.push_back(s.losses.empty() ? "-" : format("%.4f", s.losses.back()));
    row.push_back(state_text(plan, s));
    row.push_back("points/" + names[i]);
    table.add(row);
  }
  return table.text();
}

std::string groups_table(const std::vector<PointGroup>& groups) {
  std::vector<std::string> head;
  for (const auto& [key, value] : groups.at(0).keys) head.push_back(key);
  head.insert(head.end(), {"mean val loss", "deviation", "runs"});
  TextTable table(head);

  for (const PointGroup& group : groups) {
    std::vector<std::string> row;
    for (const auto& [key, value] : group.keys) row.push_back(value);
    const size_t all = group.points.size();
    row.insert(row.end(), {loss_text(group.mean), loss_text(group.deviation),
                           group.finished == all ? str(all) : str(group.finished, " of ", all)});
    table.add(row);
  }
  return table.text();
}

/// The best point: its name and its loss, as texts.
struct Best {
  size_t point;
  std::string name, loss;
};

std::optional<Best> best_of(const SweepPlan& plan, const std::vector<PointState>& states,
                            const std::vector<PointGroup>& groups) {
  if (groups.empty()) {
    const size_t i = ranking(states).at(0);
    if (!states[i].end.empty() || states[i].losses.empty()) return std::nullopt;
    return Best{.point = i,
                .name = overrides_text(plan.points[i]),
                .loss = format("validation loss %.4f", states[i].losses.back())};
  }

  const PointGroup& group = groups[0];
  if (group.finished == 0) return std::nullopt;
  // Take the group's first run that finished. The other runs of the group differ only in the seed
  // or the fold.
  const size_t i = *std::find_if(group.points.begin(), group.points.end(), [&](size_t p) {
    return states[p].end.empty() && states[p].losses.size() == plan.rungs.size();
  });
  return Best{.point = i,
              .name = overrides_text(group.keys.empty() ? plan.points[i] : group.keys),
              .loss = format("mean validation loss %.4f", group.mean) +
                      (std::isnan(group.deviation) ? ""
                                                   : format(" (deviation %.4f, %zu runs)",
                                                            group.deviation, group.finished))};
}

void write_best(const SweepPlan& plan, const std::vector<std::string>& names,
                const std::optional<Best>& best, const fs::path& folder) {
  if (!best) return log_info("best      none: no point finished");

  const fs::path checkpoint = find_checkpoint(folder / "points" / names[best->point]);
  RunConfig config = saved_config(read_state(checkpoint), checkpoint);
  // New runs start from this config, so clear train.out_dir, which names the folder of the point,
  // and restore the keys that the sweep overrode to run it.
  const RunConfig given = load_config(plan.config, plan.keys_of(best->point)).config;
  config.train.out_dir.clear();
  config.train.pause_at = 0;
  config.train.threads = given.train.threads;
  config.train.max_time = given.train.max_time;
  config.checkpoint.resume = given.checkpoint.resume;
  write_file_durably(folder / "best.toml",
                     str("# The best point of a sweep of ", plan.config, ": ", best->name, ", ",
                         best->loss, "\n", config.schema().to_toml(&config, true)));
  log_info("best      ", best->name, "  ", best->loss, "; its config is ",
           (folder / "best.toml").string());
}

/// Returns an object for each swept key, for report_page(). It has the values and losses of the
/// points that finished with a finite loss. For the other points, it has the values and the reason
/// why they have no loss.
Json losses_by_key(const SweepPlan& plan, const std::vector<PointState>& states) {
  Json all = Json::array();
  for (size_t k = 0; k < plan.points.at(0).size(); ++k) {
    Json points = Json::array(), without_loss = Json::array();
    for (size_t i = 0; i < states.size(); ++i) {
      const PointState& s = states[i];
      const std::string value = plan.points[i][k].second, name = overrides_text(plan.points[i]);
      const bool is_complete = s.end.empty() && s.losses.size() == plan.rungs.size();
      if (is_complete && std::isfinite(s.losses.back()))
        points.push_back({value, s.losses.back(), name});
      else
        without_loss.push_back(
            {value, name, is_complete ? "a loss that is not finite" : state_text(plan, s)});
    }
    all.push_back(
        {{"key", plan.points[0][k].first}, {"points", points}, {"without_loss", without_loss}});
  }
  return all;
}

}  // namespace

std::string overrides_text(const Overrides& overrides) {
  std::string text;
  for (const auto& [key, value] : overrides) text += (text.empty() ? "" : " ") + key + "=" + value;
  return text;
}

void write_sweep_results(const SweepPlan& plan, const std::vector<std::string>& names,
                         const std::vector<PointState>& states, const fs::path& folder) {
  // Successive halving compares single runs, so its table has no means.
  const Overrides& keys = plan.points.at(0);
  const bool repeats =
      plan.rungs.size() == 1 &&
      std::any_of(keys.begin(), keys.end(), [](const auto& k) { return repeats_point(k.first); });
  const auto groups =
      repeats ? group_points(plan.points, states, plan.rungs.size()) : std::vector<PointGroup>();

  const std::string tables =
      points_table(plan, names, states) + (repeats ? "\n" + groups_table(groups) : std::string());
  write_file_durably(folder / "table.txt", tables);
  std::cout << "\n" << tables << "\n" << std::flush;
  write_best(plan, names, best_of(plan, states, groups), folder);

  std::vector<fs::path> runs;
  for (const size_t i : ranking(states)) {
    const fs::path run = folder / "points" / names[i];
    if (fs::exists(run / "metrics.jsonl") && runs.size() < max_report_runs) runs.push_back(run);
  }

  // A sweep that is complete must not fail because the chart library is missing.
  try {
    write_file_durably(folder / "report.html",
                       report_page(runs, /*refresh_s=*/0, losses_by_key(plan, states)));
    log_info("report    ", (folder / "report.html").string(),
             runs.size() < states.size() ? str(" of the best ", runs.size()) : "");
  } catch (const Error& e) {
    log_warn("the report was not written: ", e.what());
  }
}

}  // namespace lathe
