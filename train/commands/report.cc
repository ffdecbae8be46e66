// Implements `lathe report`: inserts the chart library dygraphs and the data into an HTML page,
// which is a string in the binary. The page's content security policy forbids every request. A
// curve of more than 1500 values is drawn as means with a band from minimum to maximum.
#include "train/commands/report.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iostream>
#include <thread>

#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "train/commands/commands.h"
#include "train/config/path_kind.h"
#include "train/loop/stop.h"
#include "train/store/checkpoint.h"
#include "train/store/curves.h"
#include "train/store/sinks.h"

namespace lathe {

extern const char* const report_template;  // report.html, which CMake embeds

namespace {

constexpr size_t short_curve = 150;  // number of points in the curves of layers and ranks
constexpr const char* page_mark = "<title>Lathe: training report</title>";  // a text of report.html

/// Returns the path of a file of dygraphs, which Debian's libjs-dygraphs or another package
/// installed.
fs::path library_file(const std::string& name) {
  for (const char* folder : {"/usr/share/javascript/dygraphs", "/usr/share/nodejs/dygraphs/dist",
                             "/usr/local/share/javascript/dygraphs"}) {
    if (fs::path path = fs::path(folder) / name; fs::exists(path)) return path;
  }
  fail(Exit::usage,
       "the report's chart library dygraphs is not installed; on Debian: apt install "
       "libjs-dygraphs");
}

/// Returns a file of dygraphs without the line that names a source map, because debuggers would
/// request that map.
std::string library(const std::string& name) {
  std::string text = read_file(library_file(name), Exit::io);
  const std::string_view mark = "# sourceMappingURL=";
  if (const size_t map = text.rfind(mark); map != std::string::npos && map >= 2) {
    const size_t begin = map - 2;  // the comment begins with // or /*
    text.erase(begin, text.find('\n', map) - begin);
  }
  return text;
}

/// Rounds to six digits, more than a screen can show. Replaces values that are not finite by null.
Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double v : values)
    list.push_back(std::isfinite(v) ? Json(std::strtod(format("%.6g", v).c_str(), nullptr))
                                    : Json());
  return list;
}

Json curve_json(const Series& series, size_t buckets) {
  const Reduced r = reduce(series.steps, series.values, buckets);
  Json json{{"s", r.steps}, {"v", rounded(r.mean)}};
  if (!r.low.empty()) {
    json["lo"] = rounded(r.low);
    json["hi"] = rounded(r.high);
  }
  return json;
}

std::string time_text(double seconds) {
  const auto t = static_cast<std::time_t>(seconds);
  char text[64];
  std::tm local{};
  localtime_r(&t, &local);
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local));
}

/// Returns the config fields for the model kind of a run, since defaults depend on the kind. `keys`
/// are the keys of the run's config.toml, with values as TOML text.
const std::vector<Field>& fields_of_run(const std::map<std::string, std::string>& keys) {
  const auto found = keys.find("model.kind");
  const std::string text = found == keys.end() ? "" : found->second;
  const std::string kind = text.size() > 2 ? text.substr(1, text.size() - 2) : "";
  return find_model_kind(kind) != nullptr ? RunConfig::schema(kind).fields() : all_fields();
}

/// Returns the keys of config.toml, beginning with those that are not at their defaults.
Json config_json(const fs::path& run) {
  std::map<std::string, std::string> defaults;
  const std::map<std::string, std::string> keys = config_keys(run);
  for (const Field& f : fields_of_run(keys)) defaults.emplace(f.key, toml_text(f.initial));
  Json set = Json::array(), others = Json::array();
  for (const auto& [key, value] : keys) {
    const auto found = defaults.find(key);
    const bool is_set = found == defaults.end() || found->second != value;
    (is_set ? set : others)
        .push_back({{"key", key},
                    {"value", value},
                    {"set", is_set},
                    {"initial", found == defaults.end() ? "" : found->second}});
  }
  for (Json& other : others) set.push_back(std::move(other));
  return set;
}

/// Reads the file in which `lathe profile` recorded the memory of a step.
Json profile_json(const fs::path& path) {
  Json json = parse_json(read_file(path, Exit::io), path.string(), Exit::io);
  for (const char* list : {"categories", "kept", "timeline"}) {
    const bool pairs = json.is_object() && json.contains(list) && json[list].is_array() &&
                       (!json[list].empty() || list == std::string("kept")) &&
                       std::all_of(json[list].begin(), json[list].end(), [](const Json& row) {
                         return row.is_array() && row.size() == 2 && row[1].is_number();
                       });
    if (!pairs)
      fail(Exit::io, path.string(), ": \"", list,
           "\" is not as `lathe profile` writes it; remove the file");
  }
  return json;
}

/// Returns a description of the machine that wrote the newest readable checkpoint, or an empty
/// string if no checkpoint can be read.
std::string machine_of(const fs::path& run) {
  for (const fs::path& checkpoint : list_checkpoints(run)) {
    try {
      const RunState state = read_state(checkpoint);
      return str(state.device_model, ", ", state.isa, ", ", quantity(state.threads, "thread"));
    } catch (const Error&) {  // an older checkpoint may be readable
    }
  }
  return "";
}

void add_curves(Json& json, const Curves& curves) {
  // There are many curves of layers and ranks, so each of them keeps fewer points than other
  // curves.
  size_t most = 0;
  Json all = Json::object(), layers = Json::array();
  for (const auto& [key, series] : curves.series) {
    // The page uses time as an axis, not as a curve.
    if (key == "time") continue;
    const bool is_layer = key.starts_with("layers/"), is_rank = key.starts_with("ranks/");
    all[key] = curve_json(series, is_layer || is_rank ? short_curve : report_buckets);
    most = std::max(most, series.steps.size());
    const std::string layer = is_layer ? key.substr(key.find('/', 7) + 1) : "";
    if (is_layer && std::find(layers.begin(), layers.end(), Json(layer)) == layers.end())
      layers.push_back(layer);
  }
  json["lines"] = most;
  json["reduced"] = most > report_buckets;
  json["curves"] = std::move(all);
  json["layers"] = std::move(layers);
}

/// Adds what the page can show on the x axis instead of steps: time, and tokens or samples.
void add_axes(Json& json, const Curves& curves) {
  const Series* clock = curves.find("time");
  Reduced times;
  if (clock != nullptr) times = reduce(clock->steps, clock->values, report_buckets);
  // Each part that reduce() makes has the step of the last value in the part, so also take the time
  // of that value.
  if (!times.low.empty()) times.mean = times.high;
  json["clock"] = {{"s", times.steps}, {"v", times.mean}};

  // The page computes tokens or samples from their mean number per step.
  const Series* units = curves.find(curves.unit);
  const bool has_units = units != nullptr && units->steps.back() > 0;
  json["units_per_step"] =
      has_units ? units->values.back() / static_cast<double>(units->steps.back()) : 1;
}

void add_events(Json& json, const Curves& curves) {
  const RunEvents events = read_events(curves.run());
  for (const char* list : {"starts", "samples", "changes"}) json[list] = Json::array();
  for (const auto& s : events.starts)
    json["starts"].push_back({{"step", s.step}, {"from", s.from}, {"time", time_text(s.time)}});
  for (const auto& s : events.samples)
    json["samples"].push_back({{"step", s.step}, {"text", s.text}});
  for (const auto& c : curves.changes)
    json["changes"].push_back({{"step", c.step}, {"key", c.key}, {"was", c.was}, {"is", c.is}});
}

Json run_json(const fs::path& run, const std::string& name) {
  Curves curves(run);
  curves.read();
  const RunSummary summary = summarize(curves.run());

  Json json{{"name", name},
            {"unit", curves.unit},
            {"state", summary.state},
            {"step", summary.step},
            {"steps", summary.steps},
            {"loss", number_or_null(summary.loss)},
            {"val_loss", number_or_null(summary.val_loss)},
            {"best_val_loss", Json()},
            {"best_step", Json()},
            {"machine", machine_of(curves.run())}};

  if (const Series* s = curves.validation()) {
    const auto [step, value] = lowest(*s);
    json["best_val_loss"] = json_number(value);
    json["best_step"] = step;
  }

  add_curves(json, curves);
  add_axes(json, curves);
  add_events(json, curves);
  json["config"] = config_json(curves.run());
  if (const fs::path profile = curves.run() / "profile.json"; fs::exists(profile))
    json["profile"] = profile_json(profile);
  return json;
}

/// Replaces `mark` in `text`. `mark` must occur in `text`.
void fill(std::string& text, const std::string& mark, const std::string& with) {
  const size_t at = text.find(mark);
  LATHE_CHECK(at != std::string::npos, "the report's page has no ", mark);
  text.replace(at, mark.size(), with);
}

/// Returns the names of runs: their paths without the folders that all these paths begin with.
std::vector<std::string> names_of(const std::vector<fs::path>& runs) {
  std::vector<std::string> names;
  for (const fs::path& run : runs) names.push_back(without_trailing_slash(run).string());
  if (names.size() < 2) return names;
  size_t common = names[0].size();
  for (const std::string& name : names) {
    const auto apart =
        std::mismatch(names[0].begin(),
                      names[0].begin() + static_cast<std::ptrdiff_t>(std::min(common, name.size())),
                      name.begin());
    common = static_cast<size_t>(apart.first - names[0].begin());
  }
  const size_t slash = names[0].substr(0, common).rfind('/');
  for (std::string& name : names) name = name.substr(slash == std::string::npos ? 0 : slash + 1);
  return names;
}

}  // namespace

Reduced reduce(const std::vector<int64_t>& steps, const std::vector<double>& values,
               size_t buckets) {
  if (values.size() <= buckets) return {.steps = steps, .mean = values, .low = {}, .high = {}};
  Reduced r;

  for (size_t i = 0; i < buckets; ++i) {
    const size_t begin = values.size() * i / buckets, end = values.size() * (i + 1) / buckets;
    double sum = 0, low = std::nan(""), high = low;
    size_t finite = 0;
    for (size_t k = begin; k < end; ++k) {
      if (!std::isfinite(values[k])) continue;
      sum += values[k];
      ++finite;
      low = std::fmin(low, values[k]);
      high = std::fmax(high, values[k]);
    }

    r.steps.push_back(steps[end - 1]);
    r.mean.push_back(finite > 0 ? sum / static_cast<double>(finite) : std::nan(""));
    r.low.push_back(low);
    r.high.push_back(high);
  }
  return r;
}

void check_chart_library() { library_file("dygraph.min.js"), library_file("dygraph.min.css"); }

std::string report_page(const std::vector<fs::path>& runs, int refresh_s, const Json& sweep) {
  const std::string css = library("dygraph.min.css"), js = library("dygraph.min.js");
  const auto names = names_of(runs);

  Json data{{"version", "lathe"},
            {"made", time_text(unix_seconds())},
            {"buckets", report_buckets},
            {"short_curve", short_curve},
            {"runs", Json::array()}};
  for (size_t i = 0; i < runs.size(); ++i) data["runs"].push_back(run_json(runs[i], names[i]));
  data["sweep"] = sweep;

  data["keys"] = Json::array();
  if (runs.size() > 1) {
    for (const auto& [key, values] : differing_keys(runs)) data["keys"].push_back({key, values});
  }

  // The data is in a script element: `</` could end it, and `<!--` could hide its end.
  const std::string ends = replace_all(json_text(data), "</", "<\\/");
  const std::string json = replace_all(ends, "<!--", "\\u003c!--");

  std::string page = report_template;
  fill(page, "<!--REFRESH-->",
       refresh_s > 0 ? str("<meta http-equiv=\"refresh\" content=\"", refresh_s, "\">") : "");
  fill(page, "/*LIBRARY_CSS*/", css);
  fill(page, "/*LIBRARY_JS*/", js);
  fill(page, "/*DATA*/", json);
  return page;
}

namespace {

Exit run_report(const Arguments& arguments) {
  const std::vector<fs::path> runs(arguments.positionals.begin(), arguments.positionals.end());
  const auto every = static_cast<int>(arguments.number("serve", 0, between(0, 86400), true));
  fs::path out = arguments.get("out", "");
  if (out.empty())
    out = runs.size() == 1 ? without_trailing_slash(runs[0]) / "report.html"
                           : fs::path("report.html");

  check_chart_library();
  check_output(arguments, out, page_mark);

  if (every > 0) install_stop_handlers("serving");
  do {
    write_file_durably(out, report_page(runs, every));
    if (every == 0 || stop_signal() != 0) break;
    for (int tenth = 0; tenth < 10 * every && stop_signal() == 0; ++tenth)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (stop_signal() == 0);

  log_info("report    ", out.string());
  return Exit::done;
}

}  // namespace

Command report_command() {
  return {
      .name = "report",
      .usage = "RUN... [--out report.html]",
      .doc =
          "Write an offline HTML page with the curves, samples and configs of one run or several.",
      .examples = {"report runs/quickstart", "report runs/a runs/b --out both.html"},
      .flags =
          {{"out",
            "Write the page to this file. Default: report.html in the run's folder, or in the "
            "current folder for several runs."},
           {"serve",
            "Rewrite the page at this interval in seconds until Ctrl-C, and let browsers reload "
            "it; 0 writes it once. Default: 0."},
           force_flag},
      .max_positionals = 100,
      .run = run_report,
      .switches = {"force"}};
}

}  // namespace lathe
