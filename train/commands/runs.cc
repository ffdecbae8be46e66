// Implements `lathe runs`, which lists runs, and `lathe compare`, which compares two runs.
#include "train/store/curves.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <optional>
#include <sstream>

#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "train/commands/commands.h"
#include "train/commands/table.h"
#include "train/config/path_kind.h"

namespace lathe {
namespace {

Exit run_runs(const Arguments& arguments) {
  const fs::path folder =
      arguments.positionals.empty() ? fs::path("runs") : fs::path(arguments.positionals[0]);
  if (!fs::is_directory(folder)) {
    fail(Exit::usage, "there is no folder ", folder.string(),
         arguments.positionals.empty() ? "; name the one that holds runs" : "");
  }

  // If a run can't be read, list the others. The exit code then shows that a run is missing.
  Exit exit = Exit::done;
  const auto report = [&](const std::string& why) {
    log_warn("not listed: ", why);
    exit = Exit::io;
  };
  const std::vector<RunSummary> all =
      summarize(find_runs(without_trailing_slash(folder), report), report);

  if (arguments.is_true("json")) {
    Json json = Json::array();
    for (const RunSummary& r : all) {
      json.push_back({{"run", r.run.string()},
                      {"state", r.state},
                      {"step", r.step},
                      {"steps", r.steps},
                      {"loss", number_or_null(r.loss)},
                      {"val_loss", number_or_null(r.val_loss)},
                      {"best_val_loss", number_or_null(r.best_val_loss)},
                      {r.unit + "_per_sec", number_or_null(r.units_per_sec)},
                      {"mfu", number_or_null(r.mfu)},
                      {"age_s", std::isnan(r.age_s) ? Json() : Json(r.age_s)}});
    }
    std::cout << json_text(json) << std::endl;
    return exit;
  }

  if (all.empty()) {
    std::cout << "no run in " << folder.string() << (exit == Exit::done ? "" : " can be read")
              << "\n";
    return exit;
  }

  const auto number = [](const char* form, const std::optional<double>& x) {
    return x ? format(form, *x) : "-";
  };

  TextTable table({"run", "state", "step", "loss", "val loss", "best", "speed", "mfu", "age"});
  for (const RunSummary& r : all) {
    table.add({r.run.string(), r.state, str(r.step, r.steps > 0 ? str("/", r.steps) : ""),
               number("%.4f", r.loss), number("%.4f", r.val_loss), number("%.4f", r.best_val_loss),
               r.units_per_sec ? format("%.0f %s/s", *r.units_per_sec, r.unit.c_str()) : "-",
               r.mfu ? format("%.0f%%", 100 * *r.mfu) : "-",
               std::isnan(r.age_s) ? "-" : duration_text(r.age_s)});
  }

  std::cout << table.text() << std::flush;
  return exit;
}

/// The differences between two curves at the steps that both of them have.
struct Distance {
  /// Number of common steps; first step with different values, or -1.
  int64_t steps = 0, first_difference = -1;
  double largest = 0, sum = 0, last_a = 0, last_b = 0;
  int64_t at = 0, last = 0;  ///< step of the largest difference; last common step
};

/// Returns whether two numbers are bitwise equal. All NaNs count as equal.
bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

Distance distance(const Series& a, const Series& b) {
  Distance d;
  for (size_t i = 0, k = 0; i < a.steps.size() && k < b.steps.size();) {
    if (a.steps[i] != b.steps[k]) {
      a.steps[i] < b.steps[k] ? ++i : ++k;
      continue;
    }
    const double x = a.values[i], y = b.values[k];
    const double apart = same_bits(x, y) ? 0 : std::fabs(x - y);
    ++d.steps;
    d.sum += apart;
    if (apart > d.largest) {
      d.largest = apart;
      d.at = a.steps[i];
    }
    if (d.first_difference < 0 && !same_bits(x, y)) d.first_difference = a.steps[i];
    d.last = a.steps[i];
    d.last_a = x;
    d.last_b = y;
    ++i;
    ++k;
  }
  return d;
}

/// Curves that are bitwise equal in two runs if both runs computed the same.
const std::vector<std::string> exact{"loss", "lr", "grad_norm", "tokens", "samples", "loss_scale"};

/// Returns whether a curve holds results of evaluations, which are equal under the same conditions.
bool is_metric(const std::string& name) {
  return name.starts_with("val_") || name.starts_with("accuracy") || name == "mse" || name == "mae";
}

/// The differences between two runs: in their keys, and in the curves that both of them have.
struct Comparison {
  std::vector<std::string> runs;  ///< the paths of both runs
  std::vector<std::pair<std::string, std::vector<std::string>>> keys;
  std::vector<std::pair<std::string, Distance>> distances{};
  /// Lowest validation loss of each run; nullopt if the run has none.
  std::vector<std::optional<double>> best;
  int64_t common = 0;  ///< number of logged steps that both runs have
  /// First logged step with different values; -1 if there is none.
  int64_t differing_step = -1;
  std::string differing_curves{};  ///< names of the curves that differ at that step
};

Comparison compared(const Curves& a, const Curves& b) {
  const auto best = [](const Curves& c) -> std::optional<double> {
    const Series* s = c.validation();
    return s != nullptr ? std::optional(lowest(*s).second) : std::nullopt;
  };
  Comparison c{.runs = {a.run().string(), b.run().string()},
               .keys = differing_keys({a.run(), b.run()}),
               .best = {best(a), best(b)}};

  for (const auto& [name, series] : a.series) {
    const Series* other = b.find(name);
    const bool is_exact =
        is_metric(name) || std::find(exact.begin(), exact.end(), name) != exact.end();
    // Curves of time and speed differ between any two runs, so they are not compared.
    if (other == nullptr || !is_exact) continue;

    const Distance d = distance(series, *other);
    if (name == "loss") c.common = d.steps;

    // The runs diverge at the first difference in any exact curve.
    if (is_exact && d.first_difference >= 0 &&
        (c.differing_step < 0 || d.first_difference <= c.differing_step)) {
      c.differing_curves =
          d.first_difference == c.differing_step ? c.differing_curves + ", " + name : name;
      c.differing_step = d.first_difference;
    }
    // Counts of tokens or samples are left out, because the difference between them is not
    // informative.
    if (name != "tokens" && name != "samples") c.distances.emplace_back(name, d);
  }
  return c;
}

double mean_of(const Distance& d) { return d.sum / static_cast<double>(d.steps); }

Json json_of(const Comparison& c) {
  Json json{{"runs", c.runs}, {"keys", Json::object()}, {"curves", Json::object()}};
  for (const auto& [key, values] : c.keys) json["keys"][key] = values;
  for (const auto& [name, d] : c.distances) {
    json["curves"][name] = {{"common_steps", d.steps},
                            {"mean_distance", json_number(d.steps > 0 ? mean_of(d) : 0)},
                            {"largest_distance", json_number(d.largest)},
                            {"largest_at", d.at},
                            {"last_common_step", d.last},
                            {"last", {json_number(d.last_a), json_number(d.last_b)}}};
  }

  json["best_val_loss"] = {number_or_null(c.best[0]), number_or_null(c.best[1])};
  json["common_logged_steps"] = c.common;
  json["bits_part_at"] = c.differing_step >= 0 ? Json(c.differing_step) : Json();
  json["bits_part_in"] = c.differing_step >= 0 ? Json(c.differing_curves) : Json();
  return json;
}

std::string text_of(const Comparison& c) {
  std::ostringstream out;
  out << "a  " << c.runs[0] << "\nb  " << c.runs[1] << "\n\n";
  if (c.keys.empty()) {
    out << "No key differs.\n";
  } else {
    TextTable table({"key", "a", "b"});
    for (const auto& [key, values] : c.keys)
      table.add({key, values[0].empty() ? "-" : values[0], values[1].empty() ? "-" : values[1]});
    out << table.text();
  }

  TextTable table(
      {"curve", "common steps", "mean distance", "largest", "at step", "last a", "last b"});
  for (const auto& [name, d] : c.distances) {
    if (d.steps == 0) continue;
    table.add({name, std::to_string(d.steps), format("%.3g", mean_of(d)), format("%.3g", d.largest),
               d.largest > 0 ? std::to_string(d.at) : "-", format("%.6g", d.last_a),
               format("%.6g", d.last_b)});
  }
  out << "\n" << table.text() << "\n";

  if (c.best[0] && c.best[1])
    out << format("Best validation loss: a %.4f, b %.4f.\n", *c.best[0], *c.best[1]);

  // Values may already have differed at earlier steps that are not logged.
  if (c.common == 0)
    out << "The runs have no logged step in common.\n";
  else if (c.differing_step >= 0)
    out << "The first logged step with different bits is " << c.differing_step << ", in "
        << c.differing_curves << ".\n";
  else
    out << "All " << c.common << " logged steps that the runs have in common have the same bits.\n";
  return out.str();
}

Exit run_compare(const Arguments& arguments) {
  Curves a(arguments.positionals[0]), b(arguments.positionals[1]);
  a.read();
  b.read();
  const Comparison c = compared(a, b);
  if (arguments.is_true("json"))
    std::cout << json_text(json_of(c)) << std::endl;
  else
    std::cout << text_of(c);
  return Exit::done;
}

}  // namespace

Command runs_command() {
  return {
      .name = "runs",
      .usage = "[DIR]",
      .doc =
          "List the runs in a folder and below (runs/ by default) with state, step, losses, speed "
          "and age; the exit code is 6 if one cannot be read.",
      .examples = {"runs", "runs sweeps/quickstart --json"},
      .flags = {{"json", "Print a JSON list."}},
      .min_positionals = 0,
      .run = run_runs,
      .switches = {"json"}};
}

Command compare_command() {
  return {
      .name = "compare",
      .usage = "RUN RUN",
      .doc =
          "Compare the configs and curves of two runs, and name the first step where their bits "
          "differ.",
      .examples = {"compare runs/a runs/b", "compare runs/a runs/b --json"},
      .flags = {{"json", "Print a JSON object."}},
      .min_positionals = 2,
      .max_positionals = 2,
      .run = run_compare,
      .switches = {"json"}};
}

}  // namespace lathe
