// Tests of write failures: each file call of a save fails once, fails permanently, is interrupted,
// or writes fewer bytes than requested. Also tests pipes, sockets and devices where regular files
// are expected.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "core/io/log.h"
#include "core/io/safetensors.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/small.h"
#include "train/store/checkpoint.h"
#include "train/store/metrics.h"

namespace {

using namespace lathe;
using namespace lathe::test;

const FileCalls real_calls = file_calls;

/// Replaces the calls of `file_calls`, except pread, pwrite and fallocate, until destroyed.
/// `errno_of` runs before each call: if it returns 0, the call is made; otherwise the call fails
/// with the returned errno.
class Interposed {
 public:
  explicit Interposed(std::function<int(const char* call)> errno_of,
                      size_t write_at_most = SIZE_MAX) {
    asked = std::move(errno_of);
    at_most = write_at_most;
    file_calls = {
        .open = [](const char* path, int flags,
                   mode_t mode) { return fails("open") ? -1 : real_calls.open(path, flags, mode); },
        .write = [](int fd, const void* data, size_t bytes) -> ssize_t {
          return fails("write") ? -1 : real_calls.write(fd, data, std::min(bytes, at_most));
        },
        .fsync = [](int fd) { return fails("fsync") ? -1 : real_calls.fsync(fd); },
        .close =
            [](int fd) {
              real_calls.close(fd);  // close() closes the descriptor even if it fails
              return fails("close") ? -1 : 0;
            },
        .ftruncate =
            [](int fd, off_t length) {
              return fails("ftruncate") ? -1 : real_calls.ftruncate(fd, length);
            },
        .flock =
            [](int fd, int operation) {
              return fails("flock") ? -1 : real_calls.flock(fd, operation);
            },
        .rename = [](const char* from,
                     const char* to) { return fails("rename") ? -1 : real_calls.rename(from, to); },
        .mkdir = [](const char* path,
                    mode_t mode) { return fails("mkdir") ? -1 : real_calls.mkdir(path, mode); },
        .unlink = [](const char* path) { return fails("unlink") ? -1 : real_calls.unlink(path); },
        .rmdir = [](const char* path) { return fails("rmdir") ? -1 : real_calls.rmdir(path); },
        .pread = real_calls.pread,
        .pwrite = real_calls.pwrite,
        .fallocate = real_calls.fallocate,
    };
  }
  ~Interposed() { file_calls = real_calls; }
  Interposed(const Interposed&) = delete;
  Interposed& operator=(const Interposed&) = delete;

 private:
  static bool fails(const char* call) {
    const int number = asked(call);
    if (number != 0) errno = number;
    return number != 0;
  }
  static inline std::function<int(const char*)> asked;
  static inline size_t at_most = SIZE_MAX;
};

/// A run folder with checkpoints of steps 10 and 20, or without checkpoints if `with_old` is false.
struct Run : Small {
  TempFolder folder{fast_folder()};

  explicit Run(bool with_old = true) {
    if (with_old) {
      save(10);
      save(20);
    }
  }
  void save(int64_t step) {
    RunState state;
    state.step = step;
    save_checkpoint(folder.path(), state, params, optimizer, {.newest = 2});
  }
  fs::path checkpoint(int64_t step) const {
    return folder / ("checkpoints/step-000000" + std::to_string(step));
  }
  std::string written() const {
    return slurp(checkpoint(30) / "model.safetensors") +
           slurp(checkpoint(30) / "optimizer.safetensors") + slurp(checkpoint(30) / "state.json") +
           slurp(checkpoint(30) / "manifest.json");
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& path : list_folder(folder / "checkpoints")) found.push_back(path.filename());
    std::sort(found.begin(), found.end());
    return found;
  }
};

/// Returns the names of the file calls that a save makes in a folder with two checkpoints.
std::vector<std::string> calls_of_a_save() {
  std::vector<std::string> calls;
  Run run;
  const Interposed seen([&](const char* call) {
    calls.emplace_back(call);
    return 0;
  });
  run.save(30);
  return calls;
}

TEST_CASE("a save that fails at any call keeps the checkpoints, reports why, and can be repeated",
          "[faults_io]") {
  const auto calls = calls_of_a_save();
  REQUIRE(calls.size() > 40);
  WARN(calls.size() << " calls of a save, each failing in 6 ways");
  const std::string reference = [] {
    Run run;
    run.save(30);
    return run.written();
  }();

  // The first three renames give state.json, manifest.json and the new checkpoint their final
  // names. The fourth begins the deletion of the old checkpoint, which may happen only when the new
  // checkpoint is durable.
  size_t deletes = 0;
  for (int renames = 0; renames < 4; ++deletes) renames += calls.at(deletes) == "rename";
  --deletes;

  const TempFolder logs(fast_folder());
  open_log_file((logs / "log.txt").string());
  set_console_level(Level::error);
  for (const int number : {ENOSPC, EIO, EDQUOT}) {
    for (const bool once : {true, false}) {
      for (size_t nth = 0; nth < calls.size(); ++nth) {
        INFO("call " << nth << " of " << calls.size() << ", " << calls[nth] << ", fails with errno "
                     << number << (once ? " once" : ", as do later calls that need space"));

        Run run;
        const size_t logged = slurp(logs / "log.txt").size();
        const at::Tensor before = run.params[0].parameter.data().clone();
        int code = -1;
        std::string refusal;
        {
          size_t at = 0;
          const Interposed failing([&](const char* call) {
            const bool removes =
                std::string(call) == "unlink" || std::string(call) == "rmdir" || call[0] == 'c';
            const size_t now = at++;
            return now == nth || (!once && now > nth && !removes) ? number : 0;
          });
          try {
            run.save(30);
          } catch (const Error& e) {
            code = static_cast<int>(e.code());
            refusal = e.what();
          }
        }

        const std::string warned = slurp(logs / "log.txt").substr(logged);
        if (nth >= deletes) {
          CHECK(code == -1);
          CHECK_THAT(warned, ContainsSubstring("not deleted") ||
                                 ContainsSubstring(".unfinished-step-00000010"));
        } else {
          CHECK(code == 6);
          CHECK_THAT(refusal, ContainsSubstring(std::strerror(number)));
        }

        // No old checkpoint may be deleted until the new checkpoint has its final name and its
        // parent folder is synced.
        const auto names = run.names();
        const bool renamed = fs::exists(run.checkpoint(30));
        if (!renamed) {
          CHECK(names == std::vector<std::string>{"step-00000010", "step-00000020"});
          CHECK_THAT(refusal, ContainsSubstring("checkpoint step-00000030 "));
          if (number != EIO) {
            CHECK_THAT(refusal, ContainsSubstring("180 bytes"));
            // The disk has space, so the error must not report the number of free bytes.
            CHECK_THAT(refusal, !ContainsSubstring(" are free"));
          }
        }
        for (const auto& path : list_checkpoints(run.folder.path())) verify_checkpoint(path);
        CHECK(list_checkpoints(run.folder.path()).size() >= 2);
        CHECK(run.params[0].parameter.data().equal(before));

        // Repeating the command removes the files that the failure left, and then writes bitwise
        // the same files as a save that never failed.
        clean_checkpoints(run.folder.path());
        if (renamed && nth < deletes) continue;
        run.save(nth < deletes ? 30 : 40);
        // The next save deletes the checkpoint that this save could not delete.
        if (nth >= deletes) {
          CHECK(run.names() == std::vector<std::string>{"step-00000030", "step-00000040"});
          continue;
        }
        CHECK(run.names() == std::vector<std::string>{"step-00000020", "step-00000030"});
        CHECK(run.written() == reference);
      }
    }
  }
  set_console_level(Level::info);
}

TEST_CASE("a save completes despite interrupted calls and short writes", "[faults_io]") {
  const auto calls = calls_of_a_save();
  Run reference;
  reference.save(30);

  for (size_t nth = 0; nth <= calls.size(); ++nth) {
    Run run;
    size_t at = 0;
    {
      // Round n interrupts only call n. The last round interrupts every call once, and limits each
      // write to one byte.
      bool interrupted = false;
      const Interposed some(
          [&](const char*) {
            const bool now = nth < calls.size() ? at++ == nth : !interrupted;
            interrupted = now;
            return now ? EINTR : 0;
          },
          nth < calls.size() ? SIZE_MAX : 1);
      INFO("call " << nth << " is interrupted");
      CHECK(error_of([&] { run.save(30); }) == "");
    }
    CHECK(run.names() == std::vector<std::string>{"step-00000020", "step-00000030"});
    CHECK(run.written() == reference.written());
  }

  // Also test the other files that a run writes: the lock, the metrics and the config.
  Run run;
  write_file(run.folder / "metrics.jsonl", "one\ntwo\n");
  bool interrupted = false;
  const Interposed some(
      [&](const char*) {
        interrupted = !interrupted;
        return interrupted ? EINTR : 0;
      },
      3);

  const FolderLock lock(run.folder.path());
  Metrics metrics(run.folder.path(), 4);
  metrics.add_validation(1, {{"val_loss", 2}});
  CHECK(metrics.sync() == fs::file_size(run.folder / "metrics.jsonl"));
  CHECK_THAT(slurp(run.folder / "metrics.jsonl"),
             Catch::StartsWith("one\n{") && ContainsSubstring("}\n"));
  write_file_durably(run.folder / "config.toml", "a = 1\n");
  CHECK(slurp(run.folder / "config.toml") == "a = 1\n");
}

TEST_CASE("creating nested folders syncs the parent of each new folder", "[faults_io]") {
  const TempFolder folder(fast_folder());
  std::vector<std::string> calls;
  {
    const Interposed seen([&](const char* call) {
      calls.emplace_back(call);
      return 0;
    });
    CHECK(make_folders(folder / "a/b/c/"));
    CHECK(!make_folders(folder / "a/b"));
  }
  CHECK(fs::is_directory(folder / "a/b/c"));
  CHECK(std::count(calls.begin(), calls.end(), "fsync") == 3);
  write_file(folder / "file", "");
  const std::string file = (folder / "file").string();
  CHECK_THAT(error_of([&] { make_folders(file + "/x"); }),
             ContainsSubstring(file + "/x: ") && ContainsSubstring(std::strerror(ENOTDIR)));
  CHECK_THAT(error_of([&] { make_folders(file); }),
             ContainsSubstring(file + ": ") && ContainsSubstring(std::strerror(EEXIST)));
}

TEST_CASE("a failed write keeps the old file and leaves no partial file", "[faults_io]") {
  const TempFolder folder(fast_folder());
  write_file(folder / "file", "old");
  for (const char* call : {"write", "fsync", "close", "rename"}) {
    INFO(call);
    const Interposed failing(
        [&](const char* now) { return std::string(call) == now ? ENOSPC : 0; });
    CHECK_THAT(
        error_of([&] { write_file_durably(folder / "file", "new"); }),
        ContainsSubstring((folder / "file").string()) && ContainsSubstring(std::strerror(ENOSPC)));
    CHECK(slurp(folder / "file") == "old");
    CHECK(list_folder(folder.path()).size() == 1);
  }
}

/// Creates a pipe, a socket or a link to a device.
void make_special(const std::string& kind, const fs::path& path) {
  if (kind == "pipe") {
    REQUIRE(mkfifo(path.c_str(), 0644) == 0);
  } else if (kind == "device") {
    fs::create_symlink("/dev/zero", path);
  } else {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    close(fd);
  }
}

TEST_CASE("opening a pipe, a socket or a device in place of a file fails instead of blocking",
          "[faults_io]") {
  alarm(60);  // ends the test if a call blocks
  for (const char* kind : {"pipe", "socket", "device"}) {
    INFO(kind);
    const TempFolder folder(fast_folder());
    const fs::path path = folder / "special.bin";
    make_special(kind, path);
    const auto says = [](const auto& action) {
      CHECK_THAT(error_of(action),
                 ContainsSubstring("special.bin") && ContainsSubstring("regular"));
    };
    says([&] { read_file(path, Exit::data); });
    says([&] { MappedFile(path, Exit::data); });
    says([&] { SafetensorsFile file(path); });
    says([&] { OutputFile(path, OutputFile::Open::append); });
    says([&] { OutputFile(path, OutputFile::Open::create); });
    says([&] { truncate_file(path, 0); });
    fs::create_symlink("special.bin", folder / "lock");
    CHECK_THAT(error_of([&] { FolderLock lock(folder.path()); }),
               ContainsSubstring((folder / "lock").string()) && ContainsSubstring("regular"));
  }
  alarm(0);
}

TEST_CASE("a pipe in place of any file that a run opens ends the run with an error",
          "[faults_io]") {
  const TempFolder folder(fast_folder());
  make_tiny_run(folder.path());
  const auto train = [&](const std::string& steps = "3") {
    return lathe_in(folder, {"train", "tiny.toml", "--train.steps=" + steps});
  };
  REQUIRE(train("2").code == 0);

  const fs::path checkpoint = "runs/tiny/checkpoints/step-00000002";
  const struct {
    fs::path file;
    int code;
  } places[]{{"tiny.toml", 2},
             {"data/manifest.json", 3},
             {"data/train.bin", 3},
             {"data/val.bin", 3},
             {"runs/tiny/lock", 6},
             {"runs/tiny/metrics.jsonl", 6},
             {"runs/tiny/log.txt", 6},
             {checkpoint / "state.json", 4},
             {checkpoint / "manifest.json", 4},
             {checkpoint / "model.safetensors", 4}};

  for (const auto& [file, code] : places) {
    INFO(file);
    fs::rename(folder / file.string(), folder / "aside");
    make_special("pipe", folder / file.string());
    const Finished f = train();
    INFO(f.out << f.err);
    CHECK(f.code == code);
    fs::remove(folder / file.string());
    fs::rename(folder / "aside", folder / file.string());
  }

  make_special("pipe", folder / "text");
  CHECK(lathe_in(folder, {"prepare", "text", "--out", "more"}).code == 3);
  CHECK(train().code == 0);
}

TEST_CASE("a run whose disk fills up ends with exit code 6 and resumes exactly", "[faults_io]") {
  const TempFolder folder(fast_folder());
  make_tiny_run(folder.path());
  const auto train = [&](const std::string& run, const std::string& fault) {
    std::map<std::string, std::string> environment;
    if (!fault.empty()) environment = {{"LATHE_TEST_FAIL", fault}};
    return lathe::test::run({.binary = "lathe_faults",
                             .args = {"train", "tiny.toml", "--train.steps=12",
                                      "--checkpoint.interval=4", "--train.out_dir=" + run},
                             .folder = folder.path(),
                             .environment = environment});
  };
  REQUIRE(train("reference", "").code == 0);

  const std::vector<std::pair<std::string, std::vector<std::string>>> faults{
      {"write ENOSPC 2 2", {"No space left on device", " bytes"}},
      {"fsync EIO 2 3", {"Input/output error"}},
      {"mkdir EDQUOT 1 1", {"Disk quota exceeded", " bytes"}},
      {"rename ENOSPC 3 2", {"No space left on device"}}};
  for (const auto& [fault, facts] : faults) {
    INFO(fault);
    const Finished failed = train("run", fault);
    INFO(failed.out << failed.err);
    CHECK(failed.code == 6);
    for (const std::string& fact : facts) CHECK_THAT(failed.err, ContainsSubstring(fact));
    CHECK(std::count(failed.err.begin(), failed.err.end(), '\n') == 1);

    // The existing checkpoints are intact, and the same command completes the run.
    for (const auto& path : list_folder(folder / "run/checkpoints"))
      CHECK_NOTHROW(verify_checkpoint(path));
    CHECK(train("run", "").code == 0);
    CHECK(difference(folder / "reference", folder / "run") == "");
    fs::remove_all(folder / "run");
  }
}

TEST_CASE("a command that exceeds the file size limit ends with an error, and no signal kills it",
          "[faults_io]") {
  if (!fs::exists("/usr/bin/prlimit")) {
    WARN("skipped: there is no /usr/bin/prlimit to set the limit with");
    return;
  }
  const TempFolder folder(fast_folder());
  make_tiny_run(folder.path());
  REQUIRE(lathe_in(folder, {"train", "tiny.toml", "--train.steps=12", "--train.out_dir=reference"})
              .code == 0);
  REQUIRE(lathe_in(folder, {"train", "tiny.toml", "--train.steps=12", "--train.pause_at=4",
                            "--train.out_dir=run"})
              .code == 75);
  const auto limited = [&](const std::string& bytes, std::vector<std::string> words) {
    words.insert(words.begin(), {"--fsize=" + bytes, (binary_folder() / "lathe").string()});
    const Finished f = run({"/usr/bin/prlimit", std::move(words), folder.path(), {}});
    INFO(f.out << f.err);
    CHECK(f.code == 6);
    CHECK_THAT(f.err, ContainsSubstring("File too large") && ContainsSubstring(bytes + " bytes") &&
                          ContainsSubstring("ulimit -f"));
    CHECK(std::count(f.err.begin(), f.err.end(), '\n') == 1);
  };
  limited("20000", {"train", "tiny.toml", "--train.steps=12", "--train.out_dir=run"});
  limited("20000", {"prepare", "text.txt", "--out", "more", "--tokenizer", "char"});
  limited("1000", {"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "300"});
  limited("20000", {"export", "run", "--out", "exported"});
  limited("20000", {"report", "run", "--out", "report.html"});
  limited("100", {"sweep", "tiny.toml", "--train.seed=1,2", "--out", "sweep"});

  for (const auto& path : list_folder(folder / "run/checkpoints"))
    CHECK_NOTHROW(verify_checkpoint(path));
  REQUIRE(
      lathe_in(folder, {"train", "tiny.toml", "--train.steps=12", "--train.out_dir=run"}).code ==
      0);
  CHECK(difference(folder / "reference", folder / "run") == "");
}

TEST_CASE("a log file that can't grow causes a single warning", "[faults_io]") {
  if (!fs::exists("/usr/bin/prlimit")) {
    WARN("skipped: there is no /usr/bin/prlimit to set the limit with");
    return;
  }
  const TempFolder folder(fast_folder());
  make_tiny_run(folder.path());
  fs::create_directories(folder / "run");
  write_file(folder / "run/log.txt", std::string(199'000, '\n'));
  const Finished trained = run({"/usr/bin/prlimit",
                                {"--fsize=200000", (binary_folder() / "lathe").string(), "train",
                                 "tiny.toml", "--train.out_dir=run"},
                                folder.path(),
                                {}});
  INFO(trained.out << trained.err);
  CHECK(trained.code == 0);
  CHECK_THAT(trained.err,
             ContainsSubstring("warning: ") && ContainsSubstring("log.txt: File too large"));
  CHECK(std::count(trained.err.begin(), trained.err.end(), '\n') == 1);
}

}  // namespace
