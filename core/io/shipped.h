// Configs and documentation that come with Lathe.
#pragma once

#include <string>

namespace lathe {

/// Returns the path of a file that comes with Lathe, given its name in the repository, such as
/// "configs/quickstart.toml" or "docs/guide/gpu.md". This is the name itself if the working folder
/// has a file of that name, otherwise the path of the installed file (share/lathe/configs,
/// share/doc/lathe). If there is neither, returns the name. Never throws.
std::string shipped_file(const std::string& name);

/// Returns `text` with each path in it that begins with "configs/" replaced by shipped_file() of
/// that path.
std::string with_shipped_files(const std::string& text);

}  // namespace lathe
