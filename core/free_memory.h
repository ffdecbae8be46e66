// Declares free_memory(), which returns the memory that is available to this process.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lathe {

/// Returns the number of bytes that this process can still allocate. This is the available memory
/// of the machine, or less if a control group limits the process (Linux cgroups, versions 1 and 2),
/// as in containers and batch systems. The page cache counts as free. `root` is the folder that
/// contains proc and sys; tests set it.
int64_t free_memory(const std::filesystem::path& root = "/");

}  // namespace lathe
