#include "dist/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/device.h"
#include "core/io/log.h"
#include "core/stop_signals.h"
#include "core/timing.h"

namespace lathe {
namespace {

// How long the other processes may take to end once a process has failed. The shorter limit applies
// if a process was lost and all processes but one have ended for that reason: the process that
// still runs is then the lost one. The shorter limit never applies to rank 0, which may still save
// a checkpoint.
constexpr double grace_s = 10, grace_after_loss_s = 3;

/// While this object exists, its process reads signals from a file descriptor.
class SignalReader {
 public:
  SignalReader() {
    sigset_t set = stop_signal_set();
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) fail(Exit::io, "cannot watch the processes: ", std::strerror(errno));
  }
  ~SignalReader() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  /// Waits at most 0.2 s and returns the stop signals that came.
  std::vector<int> wait() const {
    pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&poll, 1, 200);
    std::vector<int> came;
    for (signalfd_siginfo info{}; read(fd_, &info, sizeof info) == sizeof info;) {
      if (info.ssi_signo != SIGCHLD) came.push_back(static_cast<int>(info.ssi_signo));
    }
    return came;
  }
  /// Unblocks SIGCHLD in a child. Stop signals stay blocked until the child has installed its
  /// handlers, so that no signal is lost, and no signal ends the child while it loads its
  /// libraries.
  static void restore_in_child() {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &child, nullptr);
  }

 private:
  sigset_t before_{};
  int fd_;
};

/// A listening socket on the loopback interface, on which rank 0 serves the store. Rank 0 inherits
/// the socket, so that no other process can take the port. No other machine can reach the socket.
class StoreSocket {
 public:
  StoreSocket() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (fd_ < 0 || bind(fd_, generic, size) != 0 || listen(fd_, 128) != 0 ||
        getsockname(fd_, generic, &size) != 0)
      fail(Exit::io, "cannot open a port on 127.0.0.1: ", std::strerror(errno));
    port_ = ntohs(address.sin_port);
  }
  ~StoreSocket() { close(fd_); }
  StoreSocket(const StoreSocket&) = delete;
  StoreSocket& operator=(const StoreSocket&) = delete;

  int fd() const { return fd_; }
  int port() const { return port_; }

 private:
  int fd_, port_ = 0;
};

struct Process {
  pid_t pid = 0;
  std::optional<int> status{};  // status of waitpid(); empty while the process runs
};

void set_variable(const char* name, const std::string& value) {
  setenv(name, value.c_str(), /*overwrite=*/1);
}

/// Turns a forked child into the process of a rank: sets its environment and executes `lathe`.
[[noreturn]] void run_child(const LaunchOptions& options, int rank, int ranks, int restarts,
                            const StoreSocket& store, pid_t parent) {
  // In a separate process group, a rank does not receive the terminal's Ctrl-C. Only the launcher
  // receives that signal, and passes it on once. If the launcher is killed, the rank gets SIGTERM
  // and stops with a checkpoint.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(static_cast<int>(Exit::peer_lost));
  SignalReader::restore_in_child();

  // This launcher may itself run under another launcher, whose variables must not reach the ranks.
  for (const char* name :
       {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "GLOO_SOCKET_IFNAME", "LATHE_STORE_FD", "LATHE_RESTARTS"})
    unsetenv(name);
  if (restarts > 0) {
    set_variable("TORCHELASTIC_RESTART_COUNT", std::to_string(restarts));
    set_variable("LATHE_RESTARTS", std::to_string(restarts));
  }
  set_variable("RANK", std::to_string(rank));
  set_variable("WORLD_SIZE", std::to_string(ranks));
  set_variable("LOCAL_RANK", std::to_string(rank));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", std::to_string(store.port()));
  setenv("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / ranks)).c_str(),
         /*overwrite=*/0);

  if (rank == 0) {
    set_variable("LATHE_STORE_FD", std::to_string(store.fd()));
  } else {
    close(store.fd());
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  }

  std::vector<char*> words;
  std::string program = "lathe";
  words.push_back(program.data());
  std::vector<std::string> command = options.command;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execv("/proc/self/exe", words.data());
  _exit(static_cast<int>(Exit::io));
}

bool is_alive(const Process& p) { return !p.status; }

bool was_killed(const Process& p) { return p.status && WIFSIGNALED(*p.status); }

int code_of(const Process& p) {
  return was_killed(p) ? static_cast<int>(Exit::peer_lost) : WEXITSTATUS(*p.status);
}

/// The processes of one attempt: a start or a restart of the run.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int ranks, int restarts, const SignalReader& signals)
      : signals_(signals), processes_(static_cast<size_t>(ranks)) {
    const StoreSocket store;
    const pid_t self = getpid();
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) run_child(options, rank, ranks, restarts, store, self);
      if (pid < 0) {
        const int why = errno;
        send_all(SIGKILL);
        fail(Exit::memory, "cannot start process ", rank + 1, " of ", ranks, ": ",
             std::strerror(why), "; raise the limit of processes (ulimit -u)");
      }
      processes_[static_cast<size_t>(rank)].pid = pid;
    }
  }

  /// Waits until all processes have ended, and returns the exit code of the run.
  Exit wait() {
    std::optional<Clock::time_point> failed;
    while (std::any_of(processes_.begin(), processes_.end(), is_alive)) {
      for (const int signal : signals_.wait()) {
        was_stopped_ = true;
        send_all(signal);
      }
      if (collect() && !failed) failed = Clock::now();
      if (failed && seconds_since(*failed) > (only_lost_rank_runs() ? grace_after_loss_s : grace_s))
        send_all(SIGKILL);
    }
    return result_;
  }

  /// Returns how many processes were killed by a signal before this object sent SIGKILL.
  int lost() const { return lost_; }
  /// Returns whether a stop signal was passed on.
  bool was_stopped() const { return was_stopped_; }

 private:
  /// Returns whether exactly one process still runs, this process is not rank 0, and all other
  /// processes ended because this process was lost.
  bool only_lost_rank_runs() const {
    return result_ == Exit::peer_lost && lost_ == 0 && !is_alive(processes_[0]) &&
           std::ranges::count_if(processes_, is_alive) == 1;
  }
  void send_all(int signal) {
    has_sent_sigkill_ = has_sent_sigkill_ || signal == SIGKILL;
    for (const Process& p : processes_) {
      if (p.pid > 0 && is_alive(p)) kill(p.pid, signal);
    }
  }

  /// Collects the statuses of processes that have ended. Returns whether one of these failed.
  bool collect() {
    bool failed = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& p = processes_[rank];
      int status = 0;
      if (!is_alive(p) || waitpid(p.pid, &status, WNOHANG) != p.pid) continue;
      p.status = status;
      if (was_killed(p) && !has_sent_sigkill_) {
        ++lost_;
        log_warn("rank ", rank, " was killed by signal ", WTERMSIG(status), " (",
                 strsignal(WTERMSIG(status)), ")");
      }
      add_result(static_cast<Exit>(code_of(p)));
      failed = failed || (code_of(p) != 0 && code_of(p) != static_cast<int>(Exit::stopped));
    }
    return failed;
  }

  /// Updates the result with the exit code of a process. An error takes precedence over the loss of
  /// a process, and both take precedence over a stop.
  void add_result(Exit code) {
    const auto weight = [](Exit e) {
      if (e == Exit::done) return 0;
      if (e == Exit::stopped) return 1;
      return e == Exit::peer_lost ? 2 : 3;
    };
    if (weight(code) > weight(result_)) result_ = code;
  }

  const SignalReader& signals_;
  std::vector<Process> processes_;
  Exit result_ = Exit::done;
  int lost_ = 0;
  bool was_stopped_ = false, has_sent_sigkill_ = false;
};

}  // namespace

Exit launch(const LaunchOptions& options) {
  const SignalReader signals;
  int ranks = options.ranks;
  for (int restarts = 0;; ++restarts) {
    Attempt attempt(options, ranks, restarts, signals);
    const Exit result = attempt.wait();

    // Try again only after the loss of a process: an error would occur again.
    if (result != Exit::peer_lost || attempt.was_stopped() || restarts == options.max_restarts)
      return result;
    ranks = options.ranks_after_loss(ranks - attempt.lost());
    log_info("restart ", restarts + 1, " of ", options.max_restarts, " with ", ranks,
             ranks == 1 ? " process" : " processes", ", from the newest checkpoint");
  }
}

}  // namespace lathe
