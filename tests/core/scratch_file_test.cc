// Tests of scratch files, even on disks that are full or failing, and of the thread that transfers
// their data.
#include "core/io/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

const FileCalls scratch_calls = file_calls;

/// Until destroyed, makes each system call in `calls` fail with the errno that `calls` gives for
/// it, and makes reads and writes transfer at most 7 bytes.
struct FailingDisk {
  static inline std::map<std::string, int> failing;
  static int number_of(const char* call) {
    const auto found = failing.find(call);
    return errno = found == failing.end() ? 0 : found->second;
  }

  explicit FailingDisk(std::map<std::string, int> calls) {
    failing = std::move(calls);
    file_calls.open = [](const char* path, int flags, mode_t mode) {
      const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
      if (number_of(unnamed ? "open unnamed" : "open") != 0) return -1;
      return scratch_calls.open(path, flags, mode);
    };
    file_calls.fallocate = [](int fd, int mode, off_t offset, off_t length) {
      return number_of("fallocate") != 0 ? -1 : scratch_calls.fallocate(fd, mode, offset, length);
    };
    file_calls.ftruncate = [](int fd, off_t length) {
      return number_of("ftruncate") != 0 ? -1 : scratch_calls.ftruncate(fd, length);
    };
    file_calls.pread = [](int fd, void* data, size_t n, off_t offset) -> ssize_t {
      return number_of("pread") != 0
                 ? -1
                 : scratch_calls.pread(fd, data, std::min<size_t>(n, 7), offset);
    };
    file_calls.pwrite = [](int fd, const void* data, size_t n, off_t offset) -> ssize_t {
      return number_of("pwrite") != 0
                 ? -1
                 : scratch_calls.pwrite(fd, data, std::min<size_t>(n, 7), offset);
    };
  }
  ~FailingDisk() { file_calls = scratch_calls; }
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;
};

TEST_CASE("a scratch file starts with zeros, keeps written bytes, and has no name in its folder",
          "[scratch_file]") {
  // Test three file systems: one that supports unnamed files, one that does not, and one that also
  // cannot reserve space. Each read and write transfers only a few bytes.
  const std::vector<std::map<std::string, int>> systems{
      {}, {{"open unnamed", EOPNOTSUPP}}, {{"open unnamed", EISDIR}, {"fallocate", EOPNOTSUPP}}};
  for (const auto& calls : systems) {
    const TempFolder f;
    // A process with the same id on another machine may have a file of this name.
    const std::string taken = ".lathe-scratch-" + std::to_string(getpid()) + "-0";
    write_file(f / taken, "taken");
    const FailingDisk disk(calls);
    const ScratchFile file(f.path() / "not/there/yet", 100'000);
    CHECK(names(f.path()) == std::set<std::string>{taken});

    std::string bytes(50, 'x');
    file.read(70'000, bytes.data(), bytes.size());
    CHECK(bytes == std::string(50, '\0'));
    file.write(70'010, "lathe", 5);
    file.read(70'000, bytes.data(), bytes.size());
    CHECK(bytes == std::string(10, '\0') + "lathe" + std::string(35, '\0'));
    CHECK(names(f.path()) == std::set<std::string>{taken});
    CHECK(slurp(f / taken) == "taken");
  }
}

TEST_CASE("on a full or failing disk, the error of a scratch file names the folder and a remedy",
          "[scratch_file]") {
  const TempFolder f;
  const std::string folder = f.path().string();
  for (const char* call : {"open unnamed", "fallocate"}) {
    INFO(call);
    const FailingDisk disk({{call, ENOSPC}});
    try {
      const ScratchFile file(f.path(), 123'456);
      FAIL("no error");
    } catch (const FileError& e) {
      CHECK(e.code() == Exit::io);
      CHECK(e.is_full());
      CHECK_THAT(e.what(), ContainsSubstring(folder) && ContainsSubstring("free space"));
      if (std::string(call) == "fallocate")
        CHECK_THAT(e.what(), ContainsSubstring("123456") && ContainsSubstring("are free"));
    }
  }

  const ScratchFile file(f.path(), 1000);
  char byte = 0;
  {
    const FailingDisk disk({{"pread", EIO}, {"pwrite", ENOSPC}});
    CHECK_THAT(error_of([&] { file.read(0, &byte, 1); }), ContainsSubstring(folder) &&
                                                              ContainsSubstring("read") &&
                                                              ContainsSubstring("check the disk"));
    CHECK_THAT(error_of([&] { file.write(0, &byte, 1); }), ContainsSubstring(folder) &&
                                                               ContainsSubstring("write") &&
                                                               ContainsSubstring("free space"));
  }
  // The same calls work on an intact disk. Reading beyond the end of the file fails.
  CHECK(error_of([&] { file.write(999, &byte, 1); }) == "");
  CHECK(error_of([&] { file.read(999, &byte, 1); }) == "");
  CHECK_THAT(error_of([&] { file.read(1000, &byte, 1); }),
             ContainsSubstring(folder) && ContainsSubstring("read"));
}

TEST_CASE("complete pages bypass the page cache, and have the same bytes as cached pages",
          "[scratch_file]") {
  const TempFolder folder;
  // `counted` counts the transfers by descriptors with O_DIRECT. It can also refuse them, as a disk
  // with larger blocks does.
  static int direct = 0;
  static bool is_refused = false;
  direct = 0;
  const auto counted = [](int fd) {
    const bool is_direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    direct += is_direct ? 1 : 0;
    if (is_direct && is_refused) errno = EINVAL;
    return !(is_direct && is_refused);
  };
  static bool (*const allowed)(int) = counted;
  file_calls.pread = [](int fd, void* data, size_t n, off_t offset) -> ssize_t {
    return allowed(fd) ? scratch_calls.pread(fd, data, n, offset) : -1;
  };
  file_calls.pwrite = [](int fd, const void* data, size_t n, off_t offset) -> ssize_t {
    return allowed(fd) ? scratch_calls.pwrite(fd, data, n, offset) : -1;
  };

  constexpr size_t page = 4096, bytes = 8 * page;
  auto* const memory = static_cast<char*>(std::aligned_alloc(page, bytes));
  for (const bool refused : {false, true}) {
    is_refused = refused;
    ScratchFile file(folder.path(), bytes);
    for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i * i % 251);
    const std::string written(memory, bytes);
    file.write(0, memory, bytes);
    CHECK(direct == 0);

    file.bypass_cache();
    file.write(0, memory, bytes);
    file.read(page, memory, 2 * page);
    const int by_pages = std::exchange(direct, 0);
    CHECK(std::string(memory, 2 * page) == written.substr(page, 2 * page));

    // Incomplete pages and unaligned memory go through the page cache, and have the same bytes.
    file.write(5, "lathe", 5);
    file.read(0, memory + 1, page);
    CHECK(std::exchange(direct, 0) == 0);
    CHECK(std::string(memory + 1, 12) == written.substr(0, 5) + "lathe" + written.substr(10, 2));
    file.read(0, memory, page);
    CHECK(std::string(memory, 12) == written.substr(0, 5) + "lathe" + written.substr(10, 2));
    CHECK((direct > 0) == (by_pages > 0));  // both are 0 without O_DIRECT
    direct = 0;
  }
  std::free(memory);
  file_calls = scratch_calls;
}

TEST_CASE("the transfer thread runs its tasks in order", "[scratch_file]") {
  std::vector<int> done;
  std::mutex mutex;
  std::condition_variable last;
  bool is_last = false;
  WorkThread thread;
  for (int i = 0; i < 100; ++i) thread.add([&done, i] { done.push_back(i); });
  thread.add([&] {
    const std::lock_guard lock(mutex);
    is_last = true;
    last.notify_all();
  });
  std::unique_lock lock(mutex);
  last.wait(lock, [&] { return is_last; });
  REQUIRE(done.size() == 100);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

}  // namespace
