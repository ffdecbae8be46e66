// Declares functions that find the configs and documentation that come with Lathe.
#pragma once

#include <string>

namespace lathe {

/// Returns the path of a file that comes with Lathe, given its name in the repository, such as
/// "configs/quickstart.toml" or "docs/guide/gpu.md". Returns `name` itself if the working folder
/// has a file of that name, otherwise the path of the installed file (in share/lathe/configs or
/// share/doc/lathe). If neither file exists, returns `name`. Never throws.
std::string shipped_file(const std::string& name);

/// Replaces each path in `text` that begins with "configs/" by shipped_file() of that path, and
/// returns the new text.
std::string with_shipped_files(const std::string& text);

}  // namespace lathe
