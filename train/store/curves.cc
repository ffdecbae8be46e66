#include "train/store/curves.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "core/io/text.h"
#include "core/io/toml.h"
#include "train/config/path_kind.h"
#include "train/store/checkpoint.h"

namespace lathe {
namespace {

/// Returns a number that json_number() wrote; nullopt for null and for any other value.
std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::nan("");
  if (text == "inf") return HUGE_VAL;
  if (text == "-inf") return -HUGE_VAL;
  return std::nullopt;
}

bool has_metrics(const fs::path& run) { return fs::is_regular_file(run / "metrics.jsonl"); }

}  // namespace

std::pair<int64_t, double> lowest(const Series& s) {
  const auto best = std::min_element(s.values.begin(), s.values.end(), [](double a, double b) {
    return !std::isnan(a) && (std::isnan(b) || a < b);
  });
  return {s.steps[static_cast<size_t>(best - s.values.begin())], *best};
}

Json number_or_null(const std::optional<double>& x) { return x ? json_number(*x) : Json(); }

Curves::Curves(const fs::path& run) : run_(without_trailing_slash(run)) {
  if (!has_metrics(run_) && !fs::exists(run_ / "config.toml"))
    fail(Exit::usage, run_.string(),
         fs::exists(run_ / "sweep.json")
             ? " is a sweep, whose report is its report.html; give one of its runs in points/"
             : " is not a run; give the folder that train.out_dir names");
}

const Series* Curves::find(const std::string& name) const {
  const auto found = series.find(name);
  return found == series.end() ? nullptr : &found->second;
}

void Curves::add(const Json& line, const std::string& where) {
  const int64_t step = json_integer(line, "step", 0, int64_t{1} << 53, where, Exit::io);
  if (line.contains("memory") && line["memory"].is_object()) memory_ = line["memory"];

  const auto put = [&](const std::string& name, const Json& value) {
    if (const auto number = number_of(value)) {
      Series& s = series[name];
      s.steps.push_back(step);
      s.values.push_back(*number);
    }
  };

  for (const auto& [key, value] : line.items()) {
    if (key == "step" || key == "memory" || (key == "time" && !line.contains("loss"))) continue;
    if (key == "samples") unit = key;
    if (key == "changed" && value.is_object()) {
      for (const auto& [name, change] : value.items()) {
        changes.push_back({.step = step,
                           .key = name,
                           .was = json_get<std::string>(change, "was", where, Exit::io),
                           .is = json_get<std::string>(change, "is", where, Exit::io)});
      }
    } else if (key == "layers" && value.is_object()) {
      for (const auto& [layer, metrics] : value.items()) {
        for (const auto& [metric, x] : metrics.items()) put("layers/" + metric + "/" + layer, x);
      }
    } else if (key == "ranks" && value.is_array()) {
      for (size_t rank = 0; rank < value.size(); ++rank) {
        for (const char* metric : {"busy_ms", "wait_ms", "memory_bytes", "sent_bytes"}) {
          if (value[rank].is_object() && value[rank].contains(metric))
            put(str("ranks/", metric, "/", rank), value[rank][metric]);
        }
      }
    } else {
      put(key, value);
    }
  }

  if (line.contains("loss")) {  // a line has "memory" only if a peak has changed
    for (const auto& [category, bytes] : memory_.items()) put("memory/" + category, bytes);
  }
}

bool Curves::read() {
  const fs::path path = run_ / "metrics.jsonl";
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return false;

  // A resumed run may have truncated the file to its checkpoint, and the file may since have grown
  // beyond offset_. In this case, the last line that was read is no longer at its old position.
  std::ifstream file(path, std::ios::binary);
  bool cut = size < offset_;
  if (!cut && !last_line_.empty()) {
    std::string there(last_line_.size(), '\0');
    file.seekg(static_cast<std::streamoff>(offset_ - last_line_.size()));
    file.read(there.data(), std::ssize(there));
    cut = there != last_line_;
    file.clear();
  }
  if (cut) *this = Curves(run_);
  if (size == offset_) return cut;
  file.seekg(static_cast<std::streamoff>(offset_));
  bool any = cut;
  for (std::string line;
       std::getline(file, line) && !file.eof();) {  // the last line may be incomplete
    const std::string where = str(path.string(), ":", lines_ + 1);
    add(parse_json(line, where, Exit::io), where);
    ++lines_;
    offset_ += line.size() + 1;
    last_line_ = line + "\n";
    any = true;
  }
  return any;
}

std::map<std::string, std::string> config_keys(const fs::path& run) {
  std::map<std::string, std::string> keys;
  const fs::path path = run / "config.toml";
  if (!fs::exists(path)) return keys;
  for (const TomlEntry& entry : read_toml(path.string())) keys[entry.key] = toml_text(entry.value);
  return keys;
}

std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(
    const std::vector<fs::path>& runs) {
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> names;
  for (const fs::path& run : runs) {
    all.push_back(config_keys(run));
    for (const auto& [key, value] : all.back()) names.insert(key);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> differing;
  for (const std::string& key : names) {
    std::vector<std::string> values;
    for (auto& keys : all) values.push_back(keys[key]);
    const bool same =
        std::all_of(values.begin(), values.end(), [&](const auto& v) { return v == values[0]; });
    if (!same && key != "train.out_dir") differing.emplace_back(key, values);
  }
  return differing;
}

namespace {

/// Returns whether a process of this machine holds the run's lock. Does not take the lock, since a
/// trainer that is starting would then fail.
bool is_locked(const fs::path& run) {
  struct stat s{};
  if (::stat((run / "lock").c_str(), &s) != 0) return false;
  std::ifstream locks("/proc/locks");  // "1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF"
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, how, what, pid, file;
    words >> number >> kind >> how >> what >> pid >> file;
    if (kind == "FLOCK" && file.ends_with(":" + std::to_string(s.st_ino))) return true;
  }
  return false;
}

/// Returns the last complete lines of a file, of at most `most` bytes in total.
std::vector<std::string> last_lines(const fs::path& path, uint64_t most) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return {};
  const uint64_t begin = size > most ? size - most : 0;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(begin));
  std::vector<std::string> lines;
  std::string line;
  if (begin > 0) std::getline(file, line);  // skip the end of a line that began earlier
  while (std::getline(file, line) && !file.eof()) lines.push_back(line);
  return lines;
}

/// Adds the newest step, losses and speed from the last lines of metrics.jsonl, whose path is
/// `path`.
void add_last_metrics(const std::vector<std::string>& lines, const fs::path& path, RunSummary& s) {
  bool has_step = false;
  for (auto line = lines.rbegin(); line != lines.rend() && !(has_step && s.val_loss); ++line) {
    const std::string where =
        str(path.string(), ", line ", line - lines.rbegin() + 1, " from the end");
    const Json j = parse_json(*line, where, Exit::io);
    const auto number = [&](const char* key) {
      return j.contains(key) ? number_of(j[key]) : std::nullopt;
    };
    s.step = std::max(s.step, json_integer(j, "step", 0, int64_t{1} << 53, where, Exit::io));
    if (!s.val_loss) s.val_loss = number(j.contains("val_loss") ? "val_loss" : "mse");
    if (has_step || !j.contains("loss")) continue;
    has_step = true;
    if (j.contains("samples")) s.unit = "samples";
    s.loss = number("loss");
    s.units_per_sec = number((s.unit + "_per_sec").c_str());
    s.mfu = number("mfu");
  }
}

/// The last process that trained a run, according to events.jsonl.
struct LastProcess {
  double start = 0;           ///< when it began to train, in seconds since 1970; 0 if unknown
  std::optional<int> exit{};  ///< its exit code; nullopt if it is running, was killed or lost power
};

LastProcess last_process(const fs::path& run) {
  LastProcess last;
  for (const std::string& line : last_lines(run / "events.jsonl", uint64_t{1} << 20)) {
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;
    const Json kind = event.value("event", Json());
    if (kind == Json("start") && event.value("time", Json()).is_number())
      last = {.start = event["time"].get<double>()};
    if (kind == Json("end") && event.value("exit", Json()).is_number_integer())
      last.exit = event["exit"].get<int>();
  }
  return last;
}

/// Returns the latest step in which the run diverged, according to its replay bundles. Returns -1
/// if there is no bundle, or if the run was resumed since. `start`: when it was last resumed.
int64_t diverged_step(const fs::path& run, double start) {
  int64_t step = -1;
  for (const fs::path& bundle : list_folder(run / "diverged")) {
    const std::string name = bundle.filename().string();
    struct stat file{};
    const bool is_older = ::stat((bundle / "state.json").c_str(), &file) == 0 &&
                          static_cast<double>(file.st_mtime) + 1 < start;
    const bool has_name =
        name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos;
    if (has_name && !is_older) step = std::max<int64_t>(step, std::atoll(name.c_str() + 5));
  }
  return step;
}

}  // namespace

RunSummary summarize(const fs::path& run) {
  RunSummary s{.run = run, .state = "stopped"};
  const fs::path path = run / "metrics.jsonl";
  const auto lines = last_lines(path, uint64_t{4} << 20);
  add_last_metrics(lines, path, s);

  struct stat file{};
  s.age_s = std::nan("");
  if (::stat(path.c_str(), &file) == 0)
    s.age_s = std::max(0.0, difftime(::time(nullptr), file.st_mtime));

  const auto keys = config_keys(run);
  const auto whole = [&](const char* key) {
    const auto found = keys.find(key);
    return found == keys.end() ? 0 : std::atoll(found->second.c_str());
  };
  s.steps = whole("train.steps");
  // A run without data that was never trained was imported.
  const auto data = keys.find("data.dir");
  const bool is_imported = lines.empty() && data != keys.end() && data->second == "\"\"";
  if (is_imported) s.steps = 0;

  int64_t saved = 0;
  bool is_due = false, stalled = false, is_merged = false;
  if (const auto all = list_checkpoints(run); !all.empty()) {
    // `lathe merge` writes only a checkpoint.
    is_merged = keys.empty() && !fs::exists(path);
    try {
      const RunState state = read_state(all.front());
      saved = state.step;
      is_due = state.eval_due || state.sample_due;
      s.best_val_loss = state.best_val_loss;
      stalled = has_stalled(state, whole("train.early_stop"));
      if (!s.val_loss) s.val_loss = state.val_loss;
    } catch (const Error&) {  // the state was deleted in the meantime or is damaged, so use only
                              // the metrics
    }
  }

  s.step = std::max(s.step, saved);
  const bool no_number =
      s.val_loss && !std::isfinite(*s.val_loss) && s.steps > 0 && s.step >= s.steps;
  const bool finished = s.steps > 0 && (saved >= s.steps || stalled) && !is_due && !no_number;
  const LastProcess last = last_process(run);
  const bool diverged = no_number || last.exit == static_cast<int>(Exit::diverged) ||
                        diverged_step(run, last.start) >= std::max<int64_t>(s.step, 0);
  // A process on another machine holds no lock here.
  const bool moving =
      !last.exit && s.age_s < 60 && s.step > saved && (s.steps == 0 || s.step < s.steps);

  if (is_locked(run) || (moving && !finished && !diverged))
    s.state = "running";
  else if (is_imported)
    s.state = "imported";
  else if (is_merged)
    s.state = "merged";
  else if (finished)
    s.state = "finished";
  else if (diverged)
    s.state = "diverged";
  else if (const auto pause = whole("train.pause_at"); pause > 0 && saved >= pause)
    s.state = "paused";
  return s;
}

namespace {

/// Calls f(). If f() fails because `path` or a file in it can't be read, reports why.
void report_unreadable(const fs::path& path, const ReportUnreadable& report,
                       const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    if (!report) throw;
    report(e.what());
  } catch (const fs::filesystem_error& e) {
    if (!report) throw;
    report(str("cannot read ", path.string(), ": ", e.code().message()));
  }
}

void add_runs(const fs::path& folder, const ReportUnreadable& report,
              std::vector<fs::path>& found) {
  report_unreadable(folder, report, [&] {
    if (has_metrics(folder) || is_run(folder)) {
      found.push_back(folder);
      return;
    }

    for (const fs::path& inside : list_folder(folder)) {
      std::error_code error;
      const bool is_folder = fs::symlink_status(inside, error).type() == fs::file_type::directory;
      const bool is_unfinished = inside.filename().string().starts_with(".unfinished-");
      if (is_folder && !is_unfinished) add_runs(inside, report, found);
    }
  });
}

}  // namespace

std::vector<fs::path> find_runs(const fs::path& folder, const ReportUnreadable& report) {
  std::vector<fs::path> found;
  add_runs(folder, report, found);
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<RunSummary> summarize(const std::vector<fs::path>& runs,
                                  const ReportUnreadable& report) {
  std::vector<RunSummary> all;
  for (const fs::path& run : runs)
    report_unreadable(run, report, [&] { all.push_back(summarize(run)); });
  return all;
}

}  // namespace lathe
