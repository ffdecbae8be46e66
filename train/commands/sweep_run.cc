#include "train/commands/sweep_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "train/commands/commands.h"
#include "train/commands/sweep_results.h"
#include "train/loop/stop.h"
#include "train/store/checkpoint.h"

namespace lathe {
namespace {

/// Starts the process `lathe WORDS...` with this binary. Its output goes to the file descriptor
/// `out`. The new process gets a stop signal if this process dies. Returns -1 if the process can't
/// be started.
pid_t start_lathe(std::vector<std::string> words, int out) {
  words.insert(words.begin(), "lathe");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  // A stop signal stays pending until the new process has installed its handlers.
  const BlockStopSignals blocked;
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid != 0) return pid;

  // Between fork and exec, use only calls that are safe there. Put the process into a process group
  // of its own, so that Ctrl-C reaches it only through the sweep.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int in = ::open("/dev/null", O_RDONLY);

  // If the parent died before prctl, no signal will arrive, so exit immediately.
  if (::getppid() != parent || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0 || ::dup2(in, 0) < 0)
    ::_exit(127);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

/// Returns the milliseconds that `lathe plan` forecasts for a step. Returns nullopt if `lathe plan`
/// fails.
std::optional<double> planned_ms(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  words.emplace_back("--json=true");
  int ends[2];

  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const pid_t pid = start_lathe(words, ends[1]);
  // Only the new process may hold this end of the pipe open, because reading ends when the last
  // holder closes it.
  ::close(ends[1]);

  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; pid > 0 && (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);

  int status = -1;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || status != 0) return std::nullopt;
  // Log lines may come before the JSON.
  const size_t begin = text.rfind("\n{") == std::string::npos ? 0 : text.rfind("\n{") + 1;
  try {
    return json_real(parse_json(text.substr(begin), "plan", Exit::io), "ms_per_step", "plan",
                     Exit::io);
  } catch (const Error&) {
    return std::nullopt;
  }
}

class Sweep {
 public:
  Sweep(SweepPlan plan, fs::path folder, size_t jobs, int threads)
      : plan_(std::move(plan)),
        names_(point_names(plan_.points)),
        folder_(std::move(folder)),
        jobs_(jobs),
        threads_(threads),
        first_(load_config(plan_.config, plan_.keys_of(0))) {}

  /// Creates the sweep's folder, or resumes the sweep in it. Throws Exit::usage if the folder holds
  /// another sweep, and Exit::busy if another process is running the sweep.
  void open() {
    make_folders(folder_ / "points");
    lock_.emplace(folder_);

    Json points = Json::array();
    for (const Overrides& point : plan_.points) {
      points.push_back(Json::object());
      for (const auto& [key, value] : point) points.back()[key] = value;
    }

    // A sweep whose config was edited counts as another sweep, so the checksum of the config is
    // part of the record.
    Json record{{"config", plan_.config},
                {"config_xxh3", file_checksum(plan_.config)},
                {"fixed", overrides_text(plan_.fixed)},
                {"rungs", plan_.rungs},
                {"eta", plan_.eta},
                {"points", points}};

    // The keys that the environment sets are also part of the record.
    for (const auto& [key, origin] : first_.origins) {
      // Logging changes no result, and the number of threads is recorded separately.
      const bool is_free =
          key.starts_with("log.") || key == "train.threads" || sweep_keys().contains(key);
      if (is_free || !origin.starts_with("LATHE_")) continue;
      const char* value = std::getenv(origin.c_str());
      record["environment"][origin] = value == nullptr ? "" : value;
    }

    const fs::path path = folder_ / "sweep.json";
    if (fs::exists(path)) {
      Json there = parse_json(read_file(path, Exit::io), path.string(), Exit::io);
      // A resumed sweep keeps the number of threads with which it began, even on another machine.
      threads_ = static_cast<int>(json_integer(there, "threads", 0, 4096, path.string(), Exit::io));
      there.erase("threads");
      if (there != record) {
        fail(Exit::usage, folder_.string(),
             " holds another sweep, or its config file or the keys of the environment (LATHE_...) "
             "were changed since; give another --out");
      }
    } else {
      record["threads"] = threads_;
      write_file_durably(path, json_text(record, 1) + "\n");
    }

    for (size_t i = 0; i < plan_.points.size(); ++i) {
      const fs::path state = state_file(i);
      states_.push_back(fs::exists(state) ? point_state(parse_json(read_file(state, Exit::io),
                                                                   state.string(), Exit::io),
                                                        state.string())
                                          : PointState());
    }

    children_.resize(plan_.points.size(), 0);
  }

  /// Trains the points until none is left, or until a stop is requested. Returns Exit::stopped if
  /// it was stopped.
  Exit run() {
    install_stop_handlers("the points that run, each with a checkpoint");
    log_plan();

    ProgressBar bar("points", static_cast<double>(states_.size()), static_cast<double>(n_done()));
    while (true) {
      while (stop_signal() == 0 && n_running() < jobs_) {
        const auto job = next_job(states_, running(), plan_.rungs.size(), plan_.eta);
        if (!job) break;
        begin(job->first, job->second);
      }

      if (n_running() == 0) break;
      if (stop_signal() != 0 && !std::exchange(has_sent_stop_, true)) stop_children();
      collect();
      bar.show(static_cast<double>(n_done()), {str(n_running(), " running"), best_text()});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }

    if (!failure_.empty()) fail(failure_code_, failure_);
    if (stop_signal() == 0) {
      write_sweep_results(plan_, names_, states_, folder_);
      return Exit::done;
    }
    log_info("stopped; run the same command again to resume");
    return Exit::stopped;
  }

 private:
  fs::path point(size_t i) const { return folder_ / "points" / names_[i]; }
  fs::path state_file(size_t i) const { return point(i).string() + ".json"; }
  size_t n_running() const {
    return static_cast<size_t>(
        std::count_if(children_.begin(), children_.end(), [](pid_t p) { return p != 0; }));
  }
  std::vector<bool> running() const {
    std::vector<bool> is(children_.size());
    for (size_t i = 0; i < children_.size(); ++i) is[i] = children_[i] != 0;
    return is;
  }
  /// Counts the points that ended early or reached their current target.
  size_t n_done() const {
    return static_cast<size_t>(
        std::count_if(states_.begin(), states_.end(), [](const PointState& s) {
          return !s.end.empty() ||
                 (s.target >= 0 && s.losses.size() > static_cast<size_t>(s.target));
        }));
  }
  std::string best_text() const {
    const size_t best = ranking(states_).at(0);
    if (states_[best].losses.empty() || !states_[best].end.empty()) return "no result yet";
    return "best " + names_[best] + format(" %.4f", states_[best].losses.back());
  }

  void log_plan() const {
    const size_t n = plan_.points.size();
    log_info("sweep     ", quantity(static_cast<int64_t>(n), "run"), " of ", plan_.config, ", ",
             jobs_, " at a time",
             threads_ == 0 ? "" : str(", ", quantity(threads_, "thread"), " each"), ", in ",
             folder_.string());

    // One in eta of the points at a rung continues to the next.
    size_t there = n;
    int64_t steps = 0, before = 0;
    std::string text;
    for (const int64_t rung : plan_.rungs) {
      text += str(text.empty() ? "" : ", then ", there, " to step ", rung);
      steps += static_cast<int64_t>(there) * (rung - before);
      before = rung;
      there /= static_cast<size_t>(plan_.eta);
    }
    if (plan_.rungs.size() == 1) steps = plan_.steps;

    log_info("steps     ", plan_.rungs.size() > 1 ? text + ": about " : "", steps, " in total",
             plan_.rungs.size() > 1 ? str(", instead of ", plan_.steps, " without halving") : "");

    if (n_done() > 0) {
      log_info("done      ", quantity(static_cast<int64_t>(n_done()), "point"),
               " so far; continuing");
    } else if (const auto ms = planned_ms(run_words(0))) {
      log_info("time      about ",
               duration_text(1e-3 * *ms * static_cast<double>(steps) / static_cast<double>(jobs_)),
               ", from a forecast of the first point's time per step");
    }
  }

  void keep(size_t i) const {
    write_file_durably(state_file(i), json_text(to_json(states_[i])) + "\n");
  }

  /// Starts the process of a point, with a rung as its target. The process gets a stop signal if
  /// this process dies.
  void begin(size_t i, int rung) {
    // Write the target before the process starts, so that a killed sweep resumes toward it.
    if (states_[i].target != rung) {
      states_[i].target = rung;
      keep(i);
    }
    fault_point("sweep: target kept");

    std::vector<std::string> words = run_words(i);
    words.insert(words.begin(), "train");
    words.push_back("--train.out_dir=" + point(i).string());
    // The last rung is the end of the run, where it needs no pause.
    const bool at_end = static_cast<size_t>(rung) + 1 == plan_.rungs.size();
    const int64_t pause = at_end ? 0 : plan_.rungs[static_cast<size_t>(rung)];
    words.push_back("--train.pause_at=" + std::to_string(pause));
    // Override the keys of the config with which the run could stop earlier or refuse to resume.
    words.emplace_back("--train.max_time=0");
    if (first_.config.checkpoint.resume == "never") words.emplace_back("--checkpoint.resume=auto");

    const std::string log = point(i).string() + ".log";
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out < 0) fail(Exit::io, "cannot write ", log, ": ", std::strerror(errno));
    children_[i] = start_lathe(words, out);
    ::close(out);

    if (children_[i] < 0) {
      children_[i] = 0;
      fail(Exit::memory, "cannot start a process for point ", names_[i],
           "; raise the limit of processes (ulimit -u)");
    }
    fault_point("sweep: point started");
  }

  /// Returns the config of a point and its keys, as words of a command line.
  std::vector<std::string> run_words(size_t i) const {
    std::vector<std::string> words{plan_.config};
    for (const auto& [key, value] : plan_.keys_of(i)) words.push_back("--" + key + "=" + value);
    if (threads_ > 0) words.push_back("--train.threads=" + std::to_string(threads_));
    return words;
  }

  void stop_children() const {
    for (const pid_t pid : children_) {
      if (pid != 0) ::kill(pid, SIGTERM);
    }
  }

  /// Takes the results of processes that ended.
  void collect() {
    for (size_t i = 0; i < children_.size(); ++i) {
      int status = 0;
      if (children_[i] == 0 || ::waitpid(children_[i], &status, WNOHANG) != children_[i]) continue;
      children_[i] = 0;
      take(i, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
  }

  void take(size_t i, int code) {
    PointState& s = states_[i];
    const auto exit = static_cast<Exit>(code);

    if (exit == Exit::done || exit == Exit::stopped) {
      const fs::path checkpoint = find_checkpoint(point(i));
      const RunState run = read_state(checkpoint);
      // At the last rung, the run finishes. At other rungs, it pauses with the exit code of a stop,
      // unless train.early_stop has ended the run.
      const bool at_end = static_cast<size_t>(s.target) + 1 == plan_.rungs.size();
      const bool there =
          exit == Exit::done || (!at_end && run.step >= plan_.rungs[static_cast<size_t>(s.target)]);
      if (!there || run.eval_due) return;  // the run was stopped before its target

      if (run.val_loss && !std::isfinite(*run.val_loss)) return end(i, "diverged");

      s.losses.resize(static_cast<size_t>(s.target) + 1, run.best_val_loss.value_or(std::nan("")));
      log_info("point     ", overrides_text(plan_.points[i]), "  step ", run.step,
               format("  validation loss %.4f", s.losses.back()));
    } else if (exit == Exit::diverged || exit == Exit::memory) {
      return end(i, exit == Exit::diverged ? "diverged" : "out of memory");
    } else if (exit == Exit::busy &&
               // A process of an earlier sweep that was killed may still be saving this run.
               busy_++ < 600) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return;
    } else {
      if (failure_.empty()) {
        failure_ =
            str("point ", overrides_text(plan_.points[i]), " ended with exit code ", code, "; ",
                point(i).string(), ".log has the reason; the same command resumes from there");
        failure_code_ = code > 0 && code < 10 ? exit : Exit::internal;
      }
      ::raise(SIGTERM);  // stops the other points, each with a checkpoint
      return;
    }

    keep_result(i);
  }

  /// Records that a point can't continue.
  void end(size_t i, const char* why) {
    states_[i].end = why;
    log_info("point     ", overrides_text(plan_.points[i]), "  ", why);
    keep_result(i);
  }

  void keep_result(size_t i) const {
    fault_point("sweep: point ended");
    keep(i);
    fault_point("sweep: result kept");
  }

  SweepPlan plan_;
  std::vector<std::string> names_;  // names of the points
  fs::path folder_;
  size_t jobs_;
  int threads_;
  LoadedConfig first_;  // the config of point 0
  std::optional<FolderLock> lock_;
  std::vector<PointState> states_;
  std::vector<pid_t> children_;  // process of each point; 0 if it is not running
  int busy_ = 0;
  bool has_sent_stop_ = false;
  std::string failure_;
  Exit failure_code_ = Exit::internal;
};

}  // namespace

Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads) {
  Sweep sweep(std::move(plan), folder, jobs, threads);
  sweep.open();
  return sweep.run();
}

}  // namespace lathe
