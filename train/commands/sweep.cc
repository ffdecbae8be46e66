// Implements `lathe sweep`: reads the sweep from the command line or a sweep file, and runs it.
#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "train/commands/commands.h"
#include "train/commands/sweep_run.h"
#include "train/config/path_kind.h"
#include "train/formats/source.h"
#include "train/session/session.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// The contents of a command line or a sweep file: the options of the command, and the config keys
/// with their values.
struct Description {
  std::string config;
  std::map<std::string, std::string> options;
  std::map<std::string, std::string> origins;  // Arguments::origins of options in the file
  // Each axis, paired with the location that error messages name.
  std::vector<std::pair<std::string, Axis>> keys;
};

/// Returns a scalar in the form in which a user would type it on the command line.
std::string typed(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : toml_text(value);
}

Description describe(const Arguments& arguments, const std::set<std::string>& known) {
  Description d{.config = arguments.positionals[0], .options = {}, .origins = {}, .keys = {}};

  const auto add_key = [&](const std::string& key, const std::string& text,
                           const std::string& where) {
    if (sweep_keys().contains(key))
      fail(Exit::usage, where, ": ", key, " is set by the sweep; leave it out");
    d.keys.emplace_back(where, read_axis(key, text, where));
  };

  // A file with the key sweep.config is a sweep file; any other file is the config itself.
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
      d.origins[option] = entry.where + ": " + entry.key;
    }
    // By default, the output folder is named after the sweep file, not after the config.
    d.options.try_emplace(
        "out", (fs::path("sweeps") / fs::path(arguments.positionals[0]).stem()).string());
  }

  // The command line takes precedence over the file.
  for (const auto& [flag, text] : arguments.flags) {
    if (flag.find('.') == std::string::npos) {
      d.options[flag] = text;
      d.origins.erase(flag);
      continue;
    }

    std::erase_if(d.keys, [&](const auto& k) { return k.second.key == flag; });
    add_key(flag, text, "command line");
  }
  return d;
}

/// The options of a sweep, from the sweep file and the command line.
struct SweepOptions {
  std::string method;
  int64_t jobs = 1, samples = 0, eta = 3, seed = 0;
};

/// Reads a whole number of at least `least`.
int64_t whole(const Arguments& a, const char* name, double otherwise, double least) {
  return static_cast<int64_t>(a.number(name, otherwise, between(least, 1e9), true));
}

/// Returns the options. Throws Exit::usage for an option that the method does not use.
SweepOptions read_options(const Arguments& a) {
  const SweepOptions o{.method = a.get("method", a.flags.contains("samples") ? "random" : "grid"),
                       .jobs = whole(a, "jobs", 1, 1),
                       .samples = whole(a, "samples", 0, 1),
                       .eta = whole(a, "eta", 3, 2),
                       .seed = whole(a, "seed", 0, 0)};

  if (o.method != "grid" && o.method != "random" && o.method != "asha")
    fail(Exit::usage, a.where("method"), " must be grid, random or asha, not ", o.method);
  if (o.method == "random" && o.samples == 0)
    fail(Exit::usage, a.where("method"), " = random needs --samples");
  for (const char* name : {"samples", "seed"}) {
    if (a.flags.contains(name) && o.method == "grid")
      fail(Exit::usage, a.where(name),
           " has no effect with --method=grid; leave it out, or use random");
  }
  if (a.flags.contains("seed") && o.samples == 0)
    fail(Exit::usage, a.where("seed"), " has no effect without --samples; leave it out");

  for (const char* name : {"eta", "min-steps"}) {
    if (a.flags.contains(name) && o.method != "asha")
      fail(Exit::usage, a.where(name), " has no effect without --method=asha; leave it out");
  }
  return o;
}

/// Fills the points of a plan. A random search draws the values of the keys, but trains each draw
/// with every listed value of train.seed and data.fold. If the sweep has no keys except these two,
/// it also draws from their lists.
void add_points(SweepPlan& plan, const std::vector<Axis>& axes, const SweepOptions& o) {
  std::vector<Axis> drawn, repeated;
  for (const Axis& axis : axes) {
    const bool repeats = o.method == "random" && repeats_point(axis.key) && !axis.values.empty();
    (repeats ? repeated : drawn).push_back(axis);
  }
  if (drawn.empty()) std::swap(drawn, repeated);

  for (const Overrides& point : make_points(drawn, o.samples, static_cast<uint64_t>(o.seed))) {
    for (const Overrides& repeat : make_points(repeated, 0, 0)) {
      plan.points.push_back(point);
      plan.points.back().insert(plan.points.back().end(), repeat.begin(), repeat.end());
    }
  }
}

/// Checks the config of each point, and that it fits its data. Adds the training steps of all
/// points to plan.steps. Returns the [train] section of the last point. `folder` is where the
/// points will have their run folders.
TrainConfig check_points(SweepPlan& plan, const SweepOptions& o, const fs::path& folder) {
  const std::vector<std::string> names = point_names(plan.points);
  TrainConfig last;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    LoadedConfig loaded = load_config(plan.config, plan.keys_of(i));
    const TrainConfig c = loaded.config.train;
    if (c.eval_interval == 0)
      fail(Exit::usage,
           "a sweep compares validation losses, but train.eval_interval is 0; set "
           "train.eval_interval");

    if (i > 0 && o.method == "asha" &&
        (c.steps != last.steps || c.eval_interval != last.eval_interval)) {
      fail(Exit::usage,
           "the method asha compares runs at the same steps; give train.steps and "
           "train.eval_interval only one value each");
    }
    loaded.config.train.out_dir = (folder / names[i]).string();
    const RunData data = RunData::open(resolve_sources(std::move(loaded)));
    check_base_tokenizer(data.loaded, *data.data);
    plan.steps += c.steps;
    last = c;
  }
  return last;
}

/// Returns the steps at which successive halving compares runs. Without --min-steps, makes as many
/// comparisons as possible with at least one point left at the end.
std::vector<int64_t> asha_rungs(const Arguments& a, const SweepPlan& plan, const TrainConfig& c) {
  const auto eta = static_cast<double>(plan.eta), points = static_cast<double>(plan.points.size());
  // The 1e-9 corrects a logarithm of an exact power that was rounded down.
  const double powers = std::floor(std::log(points) / std::log(eta) + 1e-9);
  const double least = std::max(1.0, static_cast<double>(c.steps) / std::pow(eta, powers));
  std::vector<int64_t> rungs =
      make_rungs(c.steps, whole(a, "min-steps", std::floor(least), 1), plan.eta, c.eval_interval);

  const auto halvings = static_cast<double>(rungs.size() - 1);
  if (rungs.size() == 1 && plan.points.size() > 1)
    fail(Exit::usage, "--min-steps leaves no comparison before step ", c.steps, "; lower it");
  if (std::pow(eta, halvings) > points) {
    fail(Exit::usage, "none of ", points, " points would reach step ", c.steps, ", since one in ",
         eta, " continues after each of ", halvings,
         " comparisons; raise --samples or --min-steps");
  }
  return rungs;
}

Exit run_sweep_command(const Arguments& given) {
  const std::set<std::string> known{"jobs", "samples", "seed", "out", "method", "eta", "min-steps"};
  const Description d = describe(given, known);
  Arguments arguments = given;
  // Below, options of the sweep file are treated like options of the command line.
  arguments.flags = d.options;
  arguments.origins = d.origins;
  const SweepOptions options = read_options(arguments);

  SweepPlan plan{.config = d.config, .fixed = {}, .points = {}, .rungs = {}, .eta = options.eta};
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
         "a sweep needs a key with several values, as --optim.lr=1e-3,3e-3, or a range, as "
         "--optim.lr=1e-4..1e-2 --samples 20");

  // Check everything before anything is created.
  add_points(plan, axes, options);
  const std::string out =
      arguments.get("out", (fs::path("sweeps") / fs::path(d.config).stem()).string());
  const TrainConfig train = check_points(plan, options, fs::path(out) / "points");
  plan.rungs = options.method == "asha" ? asha_rungs(arguments, plan, train)
                                        : std::vector<int64_t>{train.steps};

  // Share the machine's threads among the jobs, unless the config or an axis sets them.
  const bool threads_swept =
      std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.key == "train.threads"; });
  const int each = threads_swept || train.threads > 0
                       ? 0
                       : std::max(1, default_threads() / static_cast<int>(options.jobs));

  check_output_folder(arguments.where("out"), out, PathKind::folder);
  return run_sweep(std::move(plan), out, static_cast<size_t>(options.jobs), each);
}

}  // namespace

Command sweep_command() {
  return {
      .name = "sweep",
      .usage = "CONFIG|SWEEP.toml --section.key=a,b,... [--jobs N]",
      .doc =
          "Train many runs of one config, over a grid, random samples or successive halving, and "
          "average the results over train.seed and data.fold; the same command resumes a sweep.",
      .examples = {"sweep configs/quickstart.toml --optim.lr=1e-3,3e-3 --train.seed=1,2,3 --jobs 2",
                   "sweep configs/quickstart.toml --optim.lr=1e-4..1e-2 --method asha --samples 9"},
      .flags =
          {{"jobs",
            "Train this many runs at the same time, which share the machine's threads. Default: "
            "1."},
           {"method",
            "Choose the points: grid takes every combination, and random takes --samples of them. "
            "asha takes --samples of them if the option is given and otherwise all, and stops the "
            "worse points early (successive halving). Default: grid, or random with --samples.",
            {"grid", "random", "asha"}},
           {"samples",
            "Draw this many points; a key may then have a range, such as --optim.lr=1e-4..1e-2, "
            "and random trains each point with every value of train.seed and data.fold."},
           {"seed", "Draw the points with this seed. Default: 0."},
           {"eta",
            "With asha, continue one of this many points after each comparison. Default: 3."},
           {"min-steps",
            "With asha, train each point for at least this many steps before the first comparison. "
            "Comparisons take place after train.steps / eta steps, train.steps / eta^2 steps and "
            "so on. By default, the number is chosen so that at least one point trains all steps."},
           {"out",
            "Write the sweep to this folder. Default: sweeps/ and the name of the config or sweep "
            "file."}},
      .config_keys = true,
      .run = run_sweep_command};
}

}  // namespace lathe
