// Tests of free_memory() within the limits of control groups. The tests write files like the ones
// in which Linux reports memory and limits.
#include "core/free_memory.h"

#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

void write_in(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  write_file(path, text);
}

/// Writes the files of a machine with 1000 KiB of available memory; returns their root.
fs::path machine(const TempFolder& folder, const std::string& groups) {
  write_in(folder / "proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 1000 kB\n");
  write_in(folder / "proc/self/cgroup", groups);
  return folder.path();
}

TEST_CASE("free memory is the machine's if no control group has a limit", "[free_memory]") {
  const TempFolder folder;
  const fs::path root = machine(folder, "5:cpu,cpuacct:/a\n0::/a/b\n");
  CHECK(free_memory(root) == 1024000);

  write_in(root / "sys/fs/cgroup/a/b/memory.max", "max\n");
  write_in(root / "sys/fs/cgroup/a/b/memory.current", "500000\n");
  CHECK(free_memory(root) == 1024000);
  CHECK(free_memory() > 0);
}

TEST_CASE("the lowest limit of a group and its ancestors applies, and cached files count as free",
          "[free_memory]") {
  const TempFolder folder;
  const fs::path root = machine(folder, "0::/job/step\n"), groups = root / "sys/fs/cgroup";
  write_in(groups / "job/step/memory.max", "900000\n");
  write_in(groups / "job/step/memory.current", "300000\n");
  CHECK(free_memory(root) == 600000);

  write_in(groups / "job/step/memory.stat", "anon 1\ninactive_file 20000\nactive_file 3000\n");
  CHECK(free_memory(root) == 623000);

  write_in(groups / "job/memory.max", "700000\n");
  write_in(groups / "job/memory.current", "300000\n");
  CHECK(free_memory(root) == 400000);

  // A container sees its own group as the root.
  write_in(groups / "memory.max", "350000\n");
  write_in(groups / "memory.current", "360000\n");
  CHECK(free_memory(root) == 0);
}

TEST_CASE("groups of version 1 are found by their controller", "[free_memory]") {
  const TempFolder folder;
  const fs::path root = machine(folder, "4:memory:/job\n3:cpu:/other\n0::/\n");
  const fs::path groups = root / "sys/fs/cgroup/memory";
  write_in(groups / "memory.limit_in_bytes", "9223372036854771712\n");
  write_in(groups / "memory.usage_in_bytes", "100\n");
  write_in(groups / "job/memory.limit_in_bytes", "500000\n");
  write_in(groups / "job/memory.usage_in_bytes", "450000\n");
  write_in(groups / "job/memory.stat", "inactive_file 7\ntotal_inactive_file 1000\n");
  CHECK(free_memory(root) == 51000);
}

}  // namespace
