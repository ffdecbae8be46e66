// Implements the program lathe_faults, which is `lathe` with faults that environment variables
// request. Tests that kill processes use it. `lathe_faults --serve FD` runs many commands
// (tests/support/faults/serve.h).
//   LATHE_TEST_KILL="POINT N"   SIGKILL when the process reaches the fault point for the N-th time
//   LATHE_TEST_STOP="POINT N"   SIGTERM when the process reaches the fault point for the N-th time
//   LATHE_TEST_FAIL="CALL ERRNO N S"
//                               the N-th call of this function (write, fsync, mkdir, rename) in
//                               the S-th save or claimed folder fails, and so do all later ones
//   LATHE_TEST_FAIL="CALL ERRNO N"
//                               the N-th call of this function (pread, pwrite, fallocate) on a
//                               scratch file fails, and so do all later ones
//   LATHE_TEST_SLOW="POINT MS"  the process sleeps MS milliseconds each time it reaches the fault
//                               point, as with a slow disk
//   LATHE_TEST_THREADS=N        limits the process to N threads, or exits with 77 if the limit
//                               can't be set
//   LATHE_TEST_LIMIT="KIND N"   limits the process: "file N" bytes in a file, "files N" open
//                               files, "memory N" MiB more address space than it has now,
//                               "heap N" bytes more heap memory than it has now
//   LATHE_TEST_RNG_SHIFT=1      dropout uses the random numbers of the next step, as after an
//                               incorrect resume
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "core/io/file.h"
#include "tests/support/faults/serve.h"
#include "train/commands/cli.h"
#include "train/step/stepper.h"

namespace {

std::string point, stop_point;
int left = 0, stop_left = 0;

struct {
  std::string call;
  int number = 0, left = 0, saves_left = -1;
} failing;
const lathe::FileCalls system_calls = lathe::file_calls;
thread_local bool saves = false;  // a save has begun or a folder was claimed on this thread
std::string slow_point;
int slow_ms = 0;

/// Returns whether this call in a save must fail. If so, sets errno.
bool fails(const char* call) {
  if (!saves || failing.saves_left != 0 || failing.call != call || --failing.left > 0) return false;
  errno = failing.number;
  return true;
}

/// Returns whether this call on a scratch file must fail. If so, sets errno. Calls are counted from
/// the start of the process.
bool fails_on_scratch(const char* call) {
  if (failing.call != call || --failing.left > 0) return false;
  errno = failing.number;
  return true;
}

void on_point(const char* name) {
  if (point == name && --left == 0) raise(SIGKILL);
  if (stop_point == name && --stop_left == 0) raise(SIGTERM);
  if (slow_point == name) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
  if (std::string(name) != "save: begun" && std::string(name) != "folder claimed") return;
  saves = true;
  if (failing.saves_left > 0) --failing.saves_left;
}

/// Parses "POINT NUMBER".
void read_point(const std::string& text, std::string& point_, int& number) {
  point_ = text.substr(0, text.rfind(' '));
  number = std::atoi(text.c_str() + text.rfind(' '));
}

void read_failing(const std::string& text) {
  std::string number;
  std::istringstream(text) >> failing.call >> number >> failing.left >> failing.saves_left;
  failing.number =
      std::map<std::string, int>{{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}}.at(number);

  auto& calls = lathe::file_calls;
  calls.write = [](int fd, const void* data, size_t n) {
    return fails("write") ? -1 : system_calls.write(fd, data, n);
  };
  calls.fsync = [](int fd) { return fails("fsync") ? -1 : system_calls.fsync(fd); };
  calls.mkdir = [](const char* path, mode_t mode) {
    return fails("mkdir") ? -1 : system_calls.mkdir(path, mode);
  };
  calls.rename = [](const char* a, const char* b) {
    return fails("rename") ? -1 : system_calls.rename(a, b);
  };

  calls.pread = [](int fd, void* data, size_t n, off_t offset) {
    return fails_on_scratch("pread") ? -1 : system_calls.pread(fd, data, n, offset);
  };
  calls.pwrite = [](int fd, const void* data, size_t n, off_t offset) {
    return fails_on_scratch("pwrite") ? -1 : system_calls.pwrite(fd, data, n, offset);
  };
  calls.fallocate = [](int fd, int mode, off_t offset, off_t length) {
    return fails_on_scratch("fallocate") ? -1 : system_calls.fallocate(fd, mode, offset, length);
  };
}

/// Limits the threads of this process. RLIMIT_NPROC counts all threads of a user and does not apply
/// to root. Therefore, a process of root becomes a user without other processes, but keeps its
/// access to all files.
void limit_threads(rlim_t most) {
  if (getuid() == 0) {
    constexpr unsigned system_admin = 21, system_resource = 24;  // linux/capability.h
    struct {
      uint32_t version;
      int pid;
    } header{0x20080522, 0};
    struct {
      uint32_t effective, permitted, inheritable;
    } rights[2]{};
    const auto other = static_cast<uid_t>(60000 + getpid() % 5000);
    if (setreuid(other, static_cast<uid_t>(-1)) != 0 || syscall(SYS_capget, &header, rights) != 0)
      std::_Exit(77);
    rights[0].effective &= ~(1U << system_admin | 1U << system_resource);
    if (syscall(SYS_capset, &header, rights) != 0) std::_Exit(77);
  }
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) std::_Exit(77);
}

/// Leaves the process one free heap block of `n` bytes, and no way to get more memory.
void limit_heap(size_t n) {
  const rlimit limit{0, 0};
  void* volatile free_block = std::malloc(n);
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(77);
  void* volatile block = nullptr;  // volatile, so that the compiler keeps the allocations
  // Below 2 KiB, every size has its own list of free blocks.
  for (size_t size = size_t{1} << 20; size >= 16; size = size > 2048 ? size / 2 : size - 16) do
      block = std::malloc(size);
    while (block != nullptr);
  std::free(free_block);
}

/// Sets the limit that LATHE_TEST_LIMIT requests.
void limit_resource(const std::string& text) {
  std::istringstream in(text);
  std::string kind;
  rlim_t n = 0;
  in >> kind >> n;
  if (kind == "heap") return limit_heap(n);

  int resource = RLIMIT_FSIZE;
  if (kind == "files") resource = RLIMIT_NOFILE;
  if (kind == "memory") {
    resource = RLIMIT_AS;
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    n = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (n << 20);
  }
  const rlimit limit{n, n};
  if (setrlimit(resource, &limit) != 0) std::_Exit(77);
}

}  // namespace

// Replaces the library's function of this name by symbol interposition, so that the library needs
// no option for this fault.
lathe::StepRandom lathe::random_of(const RunConfig& config, int64_t step, int64_t micro_batch) {
  using Function = StepRandom (*)(const RunConfig&, int64_t, int64_t);
  static const auto original =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN5lathe9random_ofERKNS_9RunConfigEll"));
  static const bool shifted = std::getenv("LATHE_TEST_RNG_SHIFT") != nullptr;
  StepRandom random = original(config, step, micro_batch);
  random.step += shifted ? 1 : 0;
  return random;
}

namespace {

int run_with_faults(int argc, char** argv) {
  if (const char* kill = std::getenv("LATHE_TEST_KILL")) {
    read_point(kill, point, left);
    lathe::fault_hook = on_point;
  }
  if (const char* stop = std::getenv("LATHE_TEST_STOP")) {
    read_point(stop, stop_point, stop_left);
    lathe::fault_hook = on_point;
  }
  if (const char* slow = std::getenv("LATHE_TEST_SLOW")) {
    read_point(slow, slow_point, slow_ms);
    lathe::fault_hook = on_point;
  }
  if (const char* fail = std::getenv("LATHE_TEST_FAIL")) {
    read_failing(fail);
    lathe::fault_hook = on_point;
  }
  if (const char* limit = std::getenv("LATHE_TEST_LIMIT")) limit_resource(limit);
  if (const char* threads = std::getenv("LATHE_TEST_THREADS"))
    limit_threads(static_cast<rlim_t>(std::atoi(threads)));
  return lathe::run_cli(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--serve") return run_with_faults(argc, argv);
  lathe::test::serve(std::atoi(argv[2]), run_with_faults);
  std::_Exit(0);  // as train/main.cc does
}
