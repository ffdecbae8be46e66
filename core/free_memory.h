// The memory that this process can still get.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lathe {

/// Returns the bytes that the machine has available, or fewer where a control group of the process
/// has a limit, as containers and batch systems set them (Linux's cgroups, versions 1 and 2). The
/// system's cache of files counts as free. `root`: a folder with proc and sys, for tests.
int64_t free_memory(const std::filesystem::path& root = "/");

}  // namespace lathe
