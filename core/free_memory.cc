#include "core/free_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace lathe {
namespace {

namespace fs = std::filesystem;

/// The names of the files that describe a control group's memory.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cached[2];  ///< beginnings of the lines in memory.stat that contain the size of the
                          ///< page cache
};
constexpr GroupFiles version_1{.limit = "memory.limit_in_bytes",
                               .used = "memory.usage_in_bytes",
                               .cached = {"total_inactive_file ", "total_active_file "}};
constexpr GroupFiles version_2{
    .limit = "memory.max", .used = "memory.current", .cached = {"inactive_file ", "active_file "}};

/// Returns the integer at the beginning of a file; nullopt if the file begins with "max" or is
/// missing.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t n = 0;
  return file >> n ? std::optional(n) : std::nullopt;
}

/// Returns the number of bytes that a group may still allocate; nullopt if it has no limit.
std::optional<int64_t> free_in(const fs::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit), used = number_in(group / files.used);
  if (!limit || !used) return std::nullopt;

  // The number of used bytes includes the page cache, but the operating system frees the cache when
  // memory is needed.
  int64_t cached = 0;
  std::ifstream statistics(group / "memory.stat");
  for (std::string line; std::getline(statistics, line);) {
    for (const std::string name : files.cached) {
      if (line.starts_with(name)) cached += std::stoll(line.substr(name.size()));
    }
  }
  return std::max<int64_t>(0, *limit - *used + cached);
}

}  // namespace

int64_t free_memory(const fs::path& root) {
  int64_t free = 0;
  std::ifstream info(root / "proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) free = 1024 * std::stoll(line.substr(13));
  }

  // Each line has the form ID:CONTROLLERS:PATH. CONTROLLERS is empty for version 2. The limits of
  // all parent groups apply too. Within a container, the folders of parents may not exist.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_first = controllers.find(",memory,") != std::string::npos;
    if (!is_first && controllers != ",,") continue;

    const fs::path top = root / (is_first ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      const auto left = free_in(top / group.relative_path(), is_first ? version_1 : version_2);
      if (left) free = std::min(free, *left);
      if (!group.has_relative_path()) break;
    }
  }
  return free;
}

}  // namespace lathe
