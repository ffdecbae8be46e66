// Implements `lathe sweep`: reads the sweep from the command line or a sweep file, and runs it.
#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "train/commands/commands.h"
#include "train/commands/sweep_run.h"

namespace lathe {
namespace {

/// Keys that the sweep sets itself.
const std::set<std::string> own_keys{"train.out_dir", "train.pause_at", "checkpoint.resume"};

/// The contents of a command line or a sweep file: the options of the command, and the config keys
/// with their values.
struct Description {
  std::string config;
  std::map<std::string, std::string> options;
  std::vector<std::pair<std::string, Axis>> keys;  // each with the location that errors name
};

/// Returns a scalar in the form in which a user would type it on the command line.
std::string typed(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : toml_text(value);
}

Description describe(const Arguments& arguments, const std::set<std::string>& known) {
  Description d{.config = arguments.positionals[0], .options = {}, .keys = {}};

  const auto add_key = [&](const std::string& key, const std::string& text,
                           const std::string& where) {
    if (own_keys.contains(key))
      fail(Exit::usage, where, ": ", key, " is set by the sweep itself; leave it out");
    d.keys.emplace_back(where, read_axis(key, text, where));
  };

  // A file with sweep.config is a sweep file; any other is the config itself.
  const bool is_file = fs::is_regular_file(d.config);
  const auto entries = is_file ? read_toml(d.config) : std::vector<TomlEntry>();
  if (std::any_of(entries.begin(), entries.end(),
                  [](const TomlEntry& e) { return e.key == "sweep.config"; })) {
    for (const TomlEntry& entry : entries) {
      if (!entry.key.starts_with("sweep.")) {
        add_key(entry.key, typed(entry.value), entry.where);
        continue;
      }

      const std::string option = entry.key.substr(6);
      if (option == "config")
        d.config = typed(entry.value);
      else if (known.contains(option))
        d.options[option] = typed(entry.value);
      else
        fail(Exit::usage, entry.where, ": [sweep] has no key ", option);
    }
    // The folder is named after the sweep file, not after its config.
    d.options.try_emplace(
        "out", (fs::path("sweeps") / fs::path(arguments.positionals[0]).stem()).string());
  }

  // The command line takes precedence over the file.
  for (const auto& [flag, text] : arguments.flags) {
    if (flag.find('.') == std::string::npos) {
      d.options[flag] = text;
      continue;
    }

    std::erase_if(d.keys, [&](const auto& k) { return k.second.key == flag; });
    add_key(flag, text, "command line");
  }
  return d;
}

Exit run_sweep_command(const Arguments& given) {
  const std::set<std::string> known{"jobs", "samples", "seed", "out", "method", "eta", "min-steps"};
  const Description d = describe(given, known);
  Arguments arguments = given;
  // From here on, options of the sweep file are treated like those of the command line.
  arguments.flags = d.options;

  const auto whole = [&](const char* name, double otherwise, double least) {
    return static_cast<int64_t>(arguments.number(name, otherwise, between(least, 1e9), true));
  };

  const std::string method =
      arguments.get("method", d.options.contains("samples") ? "random" : "grid");
  const int64_t jobs = whole("jobs", 1, 1), samples = whole("samples", 0, 1),
                eta = whole("eta", 3, 2);

  if (method != "grid" && method != "random" && method != "asha")
    fail(Exit::usage, "command line: --method must be grid, random or asha, not ", method);
  if (method == "random" && samples == 0)
    fail(Exit::usage, "command line: --method=random needs --samples");
  if (method == "grid" && samples > 0)
    fail(Exit::usage,
         "command line: --samples has no effect with --method=grid; leave it out, or take random");

  // An option that the method does not use is an error, since it would have no effect.
  for (const char* name : {"eta", "min-steps"}) {
    if (d.options.contains(name) && method != "asha")
      fail(Exit::usage, "command line: --", name,
           " has no effect without --method=asha; leave it out");
  }

  SweepPlan plan{.config = d.config, .fixed = {}, .points = {}, .rungs = {}, .eta = eta};
  std::vector<Axis> axes;
  // A key with one value is the same in every point, so it is not an axis.
  for (const auto& [where, axis] : d.keys) {
    if (axis.values.size() == 1)
      plan.fixed.emplace_back(axis.key, axis.values[0]);
    else
      axes.push_back(axis);
  }

  if (axes.empty())
    fail(Exit::usage,
         "a sweep needs a key with several values, as --optim.lr=1e-3,3e-3 or "
         "--optim.lr=1e-4..1e-2");

  // A random search draws values for all keys except train.seed and data.fold, and trains each draw
  // with every value of these two.
  std::vector<Axis> drawn, repeated;
  for (const Axis& axis : axes) {
    const bool repeats = method == "random" && repeats_point(axis.key) && !axis.values.empty();
    (repeats ? repeated : drawn).push_back(axis);
  }
  if (drawn.empty()) std::swap(drawn, repeated);
  const auto points = make_points(drawn, samples, static_cast<uint64_t>(whole("seed", 0, 0)));
  for (const Overrides& point : points) {
    for (const Overrides& repeat : make_points(repeated, 0, 0)) {
      plan.points.push_back(point);
      plan.points.back().insert(plan.points.back().end(), repeat.begin(), repeat.end());
    }
  }

  // Check the config of every point before anything is created.
  int64_t steps = 0, interval = 0, threads = 0;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    Overrides all = plan.fixed;
    all.insert(all.end(), plan.points[i].begin(), plan.points[i].end());
    const TrainConfig c = load_config(plan.config, all).config.train;
    if (c.eval_interval == 0)
      fail(Exit::usage, "a sweep compares validation losses, and train.eval_interval is 0; set it");

    if (i > 0 && method == "asha" && (c.steps != steps || c.eval_interval != interval)) {
      fail(Exit::usage,
           "command line: --method=asha compares runs at the same steps; leave train.steps and "
           "train.eval_interval as one value");
    }

    steps = c.steps, interval = c.eval_interval, threads = c.threads;
  }

  if (method == "asha") {
    // By default, use the largest number of rungs that leaves at least one point at the end. The
    // 1e-9 corrects a logarithm of an exact power that was rounded down.
    const double powers = std::floor(std::log(static_cast<double>(plan.points.size())) /
                                         std::log(static_cast<double>(eta)) +
                                     1e-9);
    const double least =
        std::max(1.0, static_cast<double>(steps) / std::pow(static_cast<double>(eta), powers));
    plan.rungs = make_rungs(steps, whole("min-steps", std::floor(least), 1), eta, interval);
    const auto halvings = static_cast<double>(plan.rungs.size() - 1);
    if (plan.rungs.size() == 1 && plan.points.size() > 1)
      fail(Exit::usage, "--min-steps leaves no comparison before step ", steps, "; lower it");
    if (std::pow(static_cast<double>(eta), halvings) > static_cast<double>(plan.points.size())) {
      fail(Exit::usage, "none of ", plan.points.size(), " points would reach step ", steps,
           ", since one in ", eta, " continues after each of ", halvings,
           " comparisons; raise --samples or --min-steps");
    }
  } else {
    plan.rungs = {steps};
  }

  // Share the machine's threads among the jobs, unless the config or an axis sets them.
  const bool threads_swept =
      std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.key == "train.threads"; });
  const int each =
      threads_swept || threads > 0 ? 0 : std::max(1, default_threads() / static_cast<int>(jobs));

  return run_sweep(std::move(plan),
                   arguments.get("out", (fs::path("sweeps") / fs::path(d.config).stem()).string()),
                   static_cast<size_t>(jobs), each);
}

}  // namespace

Command sweep_command() {
  return {
      "sweep",
      "CONFIG|SWEEP.toml --section.key=a,b,... [--jobs N]",
      "Train many runs of one config, over a grid, random samples or successive halving, and "
      "average the results over train.seed and data.fold; the same command resumes a sweep.",
      {"sweep configs/quickstart.toml --optim.lr=1e-3,3e-3 --train.seed=1,2,3 --jobs 2",
       "sweep configs/quickstart.toml --optim.lr=1e-4..1e-2 --method asha --samples 9"},
      {{"jobs",
        "Train this many runs at the same time, which share the machine's threads. Default: 1."},
       {"method",
        "Choose the points: grid takes every combination, random takes --samples of them, and asha "
        "halves those successively. Default: grid.",
        {"grid", "random", "asha"}},
       {"samples",
        "Draw this many points; a key may then have a range, such as --optim.lr=1e-4..1e-2, and "
        "random trains each point with every value of train.seed and data.fold."},
       {"seed", "Draw the points with this seed. Default: 0."},
       {"eta", "With asha, continue one point in this many. Default: 3."},
       {"min-steps",
        "With asha, compare points for the first time after at least this many steps: at the last "
        "of "
        "train.steps / eta, train.steps / eta^2 and so on that is not below it. By default, one "
        "point "
        "reaches the end."},
       {"out", "Write the sweep to this folder. Default: sweeps/ and the config's name."}},
      true,
      1,
      1,
      run_sweep_command};
}

}  // namespace lathe
