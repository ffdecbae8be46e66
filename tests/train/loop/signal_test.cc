// Tests the effect of each signal on a run, and the messages that the user gets.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/loop/stop.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Runs `body` in a child process, and returns its standard error and exit code.
Finished child(void (*body)()) {
  int pipe_[2];
  REQUIRE(pipe(pipe_) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(pipe_[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(pipe_[1]);
  Finished f;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_[0], buffer, sizeof buffer)) > 0;)
    f.err.append(buffer, static_cast<size_t>(n));
  close(pipe_[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  f.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return f;
}

auto line_count(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST_CASE(
    "the first signal is answered immediately, and a second SIGINT ends the run and reports lost "
    "steps",
    "[signal]") {
  const Finished one = child([] {
    install_stop_handlers("after this step");
    raise(SIGINT);
    _exit(stop_signal());
  });
  CHECK(one.code == SIGINT);
  CHECK_THAT(one.err, ContainsSubstring("after this step") && ContainsSubstring("again"));
  CHECK(line_count(one.err) == 1);

  const Finished twice = child([] {
    install_stop_handlers("after this step");
    note_progress(124, 120);
    raise(SIGINT);
    raise(SIGINT);
  });
  CHECK(twice.code == 130);
  CHECK_THAT(twice.err,
             ContainsSubstring("121") && ContainsSubstring("124") && ContainsSubstring("step 120"));

  const Finished early = child([] {
    install_stop_handlers("after this step");
    note_progress(7, -1);
    raise(SIGINT);
    raise(SIGINT);
  });
  CHECK_THAT(early.err, ContainsSubstring("no checkpoint") && ContainsSubstring("7 steps"));

  const Finished branch = child([] {
    install_stop_handlers("after this step");
    note_begin(3);
    note_progress(9, -1);
    raise(SIGINT);
    raise(SIGINT);
  });
  CHECK_THAT(branch.err, ContainsSubstring("no checkpoint") && ContainsSubstring("6 steps"));
}

TEST_CASE("SIGHUP stays ignored if it is ignored at the start, as nohup requires", "[signal]") {
  const Finished ignored = child([] {
    ::signal(SIGHUP, SIG_IGN);
    install_stop_handlers("after this step");
    const BlockStopSignals blocked;
    raise(SIGHUP);
    sigset_t pending;
    sigpending(&pending);
    _exit(stop_signal() == 0 && sigismember(&pending, SIGHUP) == 0 ? 0 : 1);
  });
  CHECK(ignored.code == 0);
  CHECK(ignored.err.empty());
}

TEST_CASE("no other signal ends a run that was asked to stop", "[signal]") {
  const Finished many = child([] {
    install_stop_handlers("after this step");
    for (int s : {SIGTERM, SIGTERM, SIGHUP, SIGUSR1, SIGINT, SIGPIPE}) raise(s);
    _exit(stop_signal() != 0 ? 75 : 1);
  });
  CHECK(many.code == 75);
  // The first signal is not SIGINT, so the message does not offer to stop immediately on another
  // signal.
  CHECK_THAT(many.err, ContainsSubstring("after this step") && !ContainsSubstring("again"));
  CHECK(line_count(many.err) == 1);

  const Finished saving = child([] {
    install_stop_handlers("after this step");
    const DeferSignals whole;
    for (int i = 0; i < 3; ++i) raise(SIGINT);
    _exit(75);
  });
  CHECK(saving.code == 75);
  CHECK_THAT(saving.err, ContainsSubstring("checkpoint") && ContainsSubstring("written"));
}

TEST_CASE("signals that are blocked when a process starts are answered once it is ready",
          "[signal]") {
  const Finished waited = child([] {
    const BlockStopSignals blocked;
    raise(SIGTERM);
    if (stop_signal() != 0) _exit(1);
    install_stop_handlers("after this step");
    _exit(stop_signal());
  });
  CHECK(waited.code == SIGTERM);
  CHECK_THAT(waited.err, ContainsSubstring("after this step") && !ContainsSubstring("again"));
  CHECK(line_count(waited.err) == 1);

  // A command with nothing to save is terminated by the signal; `train` writes a checkpoint.
  const TempFolder f;
  make_tiny_run(f.path());
  const auto started_with_a_signal = [&](std::vector<std::string> words) {
    words.insert(words.begin(), (binary_folder() / "lathe").string());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      const BlockStopSignals blocked;
      raise(SIGTERM);
      if (chdir(f.path().c_str()) == 0) execv(arguments[0], arguments.data());
      _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  CHECK(started_with_a_signal({"config", "show", "tiny.toml"}) == 128 + SIGTERM);
  CHECK(started_with_a_signal({"train", "tiny.toml"}) == 75);
  CHECK(list_checkpoints(f / "runs/tiny").size() == 1);
}

TEST_CASE("a run that loses its terminal saves a checkpoint and stops", "[signal]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished stopped = run({.binary = "lathe",
                                .args = {"train", "tiny.toml", "--train.steps=100000"},
                                .folder = f.path(),
                                .environment = {},
                                .signal = SIGHUP});
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 75);
  CHECK_THAT(stopped.err, ContainsSubstring("after this step"));
  CHECK(list_checkpoints(f / "runs/tiny").size() == 1);
}

TEST_CASE("a run whose output is closed continues, and counts the lines that it could not show",
          "[signal]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r = run({.binary = "lathe",
                          .args = {"train", "tiny.toml"},
                          .folder = f.path(),
                          .environment = {},
                          .close_output_after = "device"});
  INFO(r.err);
  CHECK(r.code == 0);
  CHECK(list_checkpoints(f / "runs/tiny").at(0).filename() == "step-00000040");
  CHECK_THAT(slurp(f / "runs/tiny/log.txt"),
             ContainsSubstring("lines ") && ContainsSubstring("runs/tiny/log.txt"));
}

}  // namespace
