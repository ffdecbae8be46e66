// Tests of memory in a scratch file: its bytes are kept when its pages are released, and its disk
// space is returned to the disk.
#include "core/mapped_memory.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "core/dry_run.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns this process's descriptors of unnamed files in a folder.
std::vector<int> unnamed_files_in(const fs::path& folder) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with(folder.string() + "/") && target.ends_with(" (deleted)"))
      found.push_back(std::stoi(entry.path().filename().string()));
  }
  return found;
}

TEST_CASE("tensors of mapped memory keep their values when their pages are released",
          "[mapped_memory]") {
  const TempFolder f;
  constexpr int64_t n = 4 << 20;  // 16 MiB of float32
  MappedMemory memory(f.path());
  install_allocator();
  const at::Tensor expected = torch::randn({n});
  const int64_t counted = memory_stats().total;
  at::Tensor t, small;
  {
    const UseMemorySource from(memory, Memory::parameters, 1 << 16);
    const MemoryScope scope(Memory::parameters);
    t = torch::empty({n});
    small = torch::empty({100});  // below the minimum size
    const MemoryScope other(Memory::activations);
    // Memory of another category is not mapped.
    CHECK(!MappedMemory::holds(torch::empty({n}).storage().data_ptr()));
  }
  REQUIRE(MappedMemory::holds(t.storage().data_ptr()));
  CHECK(!MappedMemory::holds(small.storage().data_ptr()));
  CHECK(memory.bytes() == 4 * n);
  CHECK(memory_stats().total - counted < 4 * n);  // mapped memory is not counted
  CHECK(t.sum().item<float>() == 0);

  t.copy_(expected);
  const int64_t before = rss_bytes();
  release_pages(t);
  CHECK(before - rss_bytes() > 3 * n);
  release_pages(expected);  // not mapped: nothing happens
  MappedMemory::prefetch(t.storage().data_ptr());
  CHECK(at::equal(t, expected));
  t.add_(1);
  release_pages(t);
  CHECK(at::equal(t, expected + 1));
}

TEST_CASE("freed blocks return their disk space, even after the MappedMemory is destroyed",
          "[mapped_memory]") {
  const TempFolder f;
  auto memory = std::make_unique<MappedMemory>(f.path());
  const std::vector<int> files = unnamed_files_in(f.path());
  REQUIRE(files.size() == 1);
  const auto blocks = [&] {
    struct stat status{};
    REQUIRE(fstat(files[0], &status) == 0);
    return status.st_blocks * 512;
  };
  constexpr size_t bytes = 1 << 20;
  c10::DataPtr kept = memory->allocate(bytes);
  for (int i = 0; i < 10; ++i) {
    const c10::DataPtr block = memory->allocate(bytes + 1);
    std::memset(block.get(), 1, bytes + 1);
  }
  CHECK(memory->bytes() == static_cast<int64_t>(bytes));
  CHECK(blocks() <= static_cast<int64_t>(3 * bytes));
  std::memset(kept.get(), 7, bytes);
  memory.reset();
  CHECK(static_cast<char*>(kept.get())[bytes - 1] == 7);
  kept = {};
  CHECK(unnamed_files_in(f.path()).empty());
}

TEST_CASE("allocating mapped memory on a full disk is an error that names the folder",
          "[mapped_memory]") {
  const TempFolder f;
  MappedMemory memory(f.path());
  const FileCalls calls = file_calls;
  file_calls.fallocate = [](int, int, off_t, off_t) { return errno = ENOSPC, -1; };
  const std::string error = error_of([&] { memory.allocate(1 << 20); });
  file_calls = calls;
  CHECK_THAT(error,
             ContainsSubstring(std::to_string(1 << 20)) && ContainsSubstring(f.path().string()));
  // The same allocation succeeds if the disk has space.
  CHECK(error_of([&] { memory.allocate(1 << 20); }).empty());
}

TEST_CASE("a page that the disk can't read ends the process with code 6 and a sentence",
          "[mapped_memory]") {
  const TempFolder f;
  int lines[2];
  REQUIRE(pipe(lines) == 0);

  const pid_t child = fork();
  if (child == 0) {
    dup2(lines[1], STDERR_FILENO);
    MappedMemory memory(f.path());
    const c10::DataPtr block = memory.allocate(1 << 20);
    // This simulates a failing disk. The kernel sends the same signal in both cases.
    if (ftruncate(unnamed_files_in(f.path()).at(0), 0) != 0) _exit(99);
    std::memset(block.get(), 1, 1 << 20);
    _exit(0);
  }

  close(lines[1]);
  std::string text(1000, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(lines[0], text.data(), text.size()))));
  close(lines[0]);
  int status = 0;
  waitpid(child, &status, 0);

  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 6);
  CHECK_THAT(text, ContainsSubstring(f.path().string()) && ContainsSubstring("scratch"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
}

TEST_CASE("a dry run only reserves addresses", "[mapped_memory]") {
  const TempFolder f;
  install_allocator();
  const DryRun dry;
  MappedMemory memory(f.path());
  CHECK(unnamed_files_in(f.path()).empty());
  const c10::DataPtr block = memory.allocate(size_t{1} << 40);  // 1 TiB, without a file on the disk
  CHECK(block.get() != nullptr);
  CHECK(memory.bytes() == int64_t{1} << 40);
  MappedMemory::release(block);
  MappedMemory::prefetch(block);
}

}  // namespace
