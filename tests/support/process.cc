#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/timing.h"
#include "train/store/checkpoint.h"

extern char** environ;

namespace lathe::test {

fs::path fast_folder() {
  return access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

TempFolder::TempFolder(const fs::path& in) {
  std::string pattern = (in / "lathe-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    fail(Exit::io, "cannot create a temporary folder in ", in.string());
  path_ = pattern;
}
TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

namespace {

/// `nohup` and some CI systems start programs with SIGHUP ignored. Commands that tests run must not
/// inherit this.
[[maybe_unused]] const auto hangup_of_caller = ::signal(SIGHUP, SIG_DFL);

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// A process that runs a command. Its stdout and stderr go to pipes.
class Child {
 public:
  virtual ~Child() = default;
  virtual pid_t pid() const = 0;
  /// Waits for the process to end and returns its status, as waitpid() does.
  virtual int status() = 0;
};

class StartedChild : public Child {
 public:
  StartedChild(std::vector<std::string> words, std::vector<std::string> environment,
               const fs::path& folder, int out, int err) {
    const auto argv = pointers(words), envp = pointers(environment);
    pid_ = fork();
    if (pid_ != 0) return;
    if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(127);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  pid_t pid() const override { return pid_; }
  int status() override {
    int status = 0;
    waitpid(pid_, &status, 0);
    return status;
  }

 private:
  pid_t pid_ = 0;
};

/// A fork of a server process that has already loaded LibTorch (tests/support/faults/serve.h). The
/// first ServedChild starts the server.
class ServedChild : public Child {
 public:
  ServedChild(std::vector<std::string> words, const std::vector<std::string>& environment,
              const fs::path& folder, int out, int err) {
    static const Server server;
    std::string text = folder.string() + '\0' + std::to_string(words.size()) + '\0';
    for (const auto& word : words) text += word + '\0';
    for (const auto& setting : environment) text += setting + '\0';
    int answer[2];
    if (pipe2(answer, O_CLOEXEC) != 0) fail(Exit::io, "cannot create a pipe");
    const std::array<int, 3> fds{out, err, answer[1]};
    iovec part{text.data(), text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(rights), fds.data(), sizeof fds);
    if (sendmsg(server.socket, &message, MSG_NOSIGNAL) < 0)
      fail(Exit::io, "cannot send a command to lathe_faults --serve: ", std::strerror(errno));
    close(answer[1]);
    answer_ = answer[0];
    pid_ = next();
  }
  ~ServedChild() override { close(answer_); }
  pid_t pid() const override { return pid_; }
  int status() override { return next(); }

 private:
  struct Server {
    int socket = -1;
    pid_t pid = 0;

    Server() {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        fail(Exit::io, "cannot create a socket");
      const std::string binary = (binary_folder() / "lathe_faults").string(),
                        end = std::to_string(ends[1]);
      pid = fork();
      if (pid == 0) {
        fcntl(ends[1], F_SETFD, 0);
        execl(binary.c_str(), binary.c_str(), "--serve", end.c_str(), nullptr);
        _exit(127);
      }
      close(ends[1]);
      socket = ends[0];
    }
    ~Server() {
      close(socket);
      waitpid(pid, nullptr, 0);
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
  };
  int next() const {
    int value = 0;
    if (read(answer_, &value, sizeof value) != sizeof value)
      fail(Exit::io, "lathe_faults --serve ended without an answer");
    return value;
  }

  int answer_ = -1;
  pid_t pid_ = 0;
};

}  // namespace

Finished run(const Invocation& c) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    fail(Exit::io, "cannot create a pipe");
  std::vector<std::string> words{(binary_folder() / c.binary).string()};
  words.insert(words.end(), c.args.begin(), c.args.end());
  // The command must not inherit LATHE_ variables from the environment of the tests.
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::strncmp(*e, "LATHE_", 6) != 0) environment.emplace_back(*e);
  }
  environment.push_back("LATHE_CACHE=" + (c.folder / "cache").string());
  for (const auto& [key, value] : c.environment) environment.push_back(key + "=" + value);

  const auto begin = Clock::now();
  const auto seconds = [&] { return seconds_since(begin); };
  const bool served = !c.apart && (c.binary == "lathe" || c.binary == "lathe_faults");
  std::unique_ptr<Child> child;
  if (served) {
    child = std::make_unique<ServedChild>(std::move(words), environment, c.folder, out[1], err[1]);
  } else {
    child = std::make_unique<StartedChild>(std::move(words), std::move(environment), c.folder,
                                           out[1], err[1]);
  }
  const pid_t pid = child->pid();
  close(out[1]);
  close(err[1]);
  Finished f;
  pollfd fds[2]{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  bool killed = false, signalled = false;
  for (int open = 2; open > 0;) {
    int wait = c.kill_after_s >= 0 && !killed
                   ? std::max(1, static_cast<int>(1e3 * (c.kill_after_s - seconds())))
                   : 60000;
    if (c.signal_after_s >= 0 && !signalled)
      wait = std::clamp(static_cast<int>(1e3 * (c.signal_after_s - seconds())), 0, wait);
    poll(fds, 2, wait);
    if (c.kill_after_s >= 0 && !killed && seconds() >= c.kill_after_s) {
      kill(pid, SIGKILL);
      killed = true;
    }
    if (seconds() > 120) kill(pid, SIGKILL);  // a test that hangs must fail
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || (fds[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      char buffer[65536];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) (i == 0 ? f.out : f.err).append(buffer, static_cast<size_t>(n));
      const bool leave = i == 0 && !c.close_output_after.empty() &&
                         f.out.find(c.close_output_after) != std::string::npos;
      if (n <= 0 || leave) {
        close(fds[i].fd);
        fds[i].fd = -1;
        --open;
      }
    }
    const bool is_time = c.signal_after_s >= 0 ? seconds() >= c.signal_after_s
                                               : f.out.find(c.signal_after) != std::string::npos;
    if (c.signal != 0 && !signalled && is_time) {
      kill(pid, c.signal);
      signalled = true;
    }
  }
  const int status = child->status();
  f.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  f.seconds = seconds();
  return f;
}

std::string sample_text(size_t bytes) {
  const char* words[]{"the",  "lathe", "turns", "wood",   "and",   "a", "tool",
                      "cuts", "what",  "turns", "slowly", "under", "it"};
  std::string text;
  uint32_t x = 12345;
  while (text.size() < bytes) {
    x = x * 1664525u + 1013904223u;  // the random number generator of Numerical Recipes
    text += words[(x >> 24) % 13];
    text += (x >> 16) % 9 == 0 ? ".\n" : " ";
  }
  return text.substr(0, bytes);
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void update_manifest(const fs::path& checkpoint) {
  Json manifest = parse_json(slurp(checkpoint / "manifest.json"), "manifest", Exit::internal);
  for (auto& [name, entry] : manifest["files"].items()) {
    entry = {{"bytes", fs::file_size(checkpoint / name)},
             {"xxh3", file_checksum(checkpoint / name)}};
  }
  write_file(checkpoint / "manifest.json", manifest.dump());
}

void make_tiny_run(const fs::path& folder, const std::string& extra) {
  write_file(folder / "text.txt", sample_text(20000));
  const Finished f =
      run({"lathe", {"prepare", "text.txt", "--out", "data", "--tokenizer", "char"}, folder, {}});
  if (f.code != 0) fail(Exit::internal, "lathe prepare failed: ", f.err);
  write_file(folder / "tiny.toml",
             "[model]\nn_layer = 2\nn_head = 2\nn_embd = 16\nblock_size = 16\ndropout = 0.1\n"
             "[data]\ndir = \"data\"\nworkers = 2\nprefetch = 3\n"
             "[schedule]\nwarmup_steps = 5\n"
             "[train]\nsteps = 40\nbatch_size = 3\ngrad_accum = 2\neval_interval = "
             "10\neval_batches = 3\nlog_interval "
             "= 1\nthreads = 1\n"
             "[checkpoint]\ninterval = 10\n" +
                 extra);
}

Finished lathe_in(const TempFolder& folder, std::vector<std::string> args, double kill_after_s) {
  return run({.binary = "lathe",
              .args = std::move(args),
              .folder = folder.path(),
              .environment = {},
              .kill_after_s = kill_after_s});
}

Finished lathe_in_new_process(const TempFolder& folder, std::vector<std::string> args) {
  return run({.binary = "lathe",
              .args = std::move(args),
              .folder = folder.path(),
              .environment = {},
              .apart = true});
}

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder))
    found.insert(entry.path().filename().string());
  return found;
}

std::string difference(const fs::path& a, const fs::path& b) {
  const auto lines = [](const fs::path& run) {
    std::vector<std::string> out;
    std::istringstream text(slurp(run / "metrics.jsonl"));
    std::set<std::string> seen;
    for (std::string line; std::getline(text, line);) {
      const Json j = parse_json(line, (run / "metrics.jsonl").string(), Exit::internal);
      // Skip the lines that log changed keys, since a run may change train.steps each time it is
      // resumed.
      if (j.contains("changed")) continue;

      std::string kept;
      for (const char* key : {"step", "loss", "lr", "grad_norm", "tokens", "samples", "loss_scale",
                              "val_loss", "accuracy", "mse"}) {
        if (j.contains(key)) kept += str(key, "=", j[key].dump(), " ");
      }

      const std::string id = str(j["step"].dump(), j.contains("loss"));
      if (!seen.insert(id).second) kept += "(a second line of this step)";
      out.push_back(kept);
    }
    return out;
  };

  const auto la = lines(a), lb = lines(b);
  for (size_t i = 0; i < std::max(la.size(), lb.size()); ++i) {
    const std::string x = i < la.size() ? la[i] : "nothing", y = i < lb.size() ? lb[i] : "nothing";
    if (x != y || x.find("second line") != std::string::npos)
      return str("metrics line ", i + 1, ": ", x, " | ", y);
  }
  if (la.empty()) return "neither run has metrics";

  // Equal metrics do not imply equal weights and optimizer states.
  const auto ca = list_checkpoints(a), cb = list_checkpoints(b);
  if (ca.empty() || cb.empty() || ca[0].filename() != cb[0].filename())
    return "the newest checkpoints are of different steps, or a run has none";
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    if (slurp(ca[0] / file) != slurp(cb[0] / file)) return str(file, " differs");
  }
  return "";
}

}  // namespace lathe::test
