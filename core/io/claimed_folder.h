// Declares a lock with which only one command at a time can write to a folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Locks a folder for a command that writes to it. The destructor removes the lock file. It also
/// removes the folder and its parents if the constructor created them and they are still empty.
class ClaimedFolder {
 public:
  /// The lock file. A process that is killed leaves the lock file behind. The next command that
  /// writes to the folder removes the file.
  static constexpr const char* lock_name = ".unfinished-lock";

  /// Creates the folder if it is missing, and locks it. Throws Exit::busy if another process has
  /// locked the folder. The message names `out`, the user's --out, instead of `folder`: it states
  /// that another `command` writes to `out`.
  ClaimedFolder(const fs::path& folder, const std::string& command, const fs::path& out);
  /// Does the same if the folder to lock is the user's --out itself.
  ClaimedFolder(const fs::path& out, const std::string& command)
      : ClaimedFolder(out, command, out) {}
  ~ClaimedFolder();
  ClaimedFolder(const ClaimedFolder&) = delete;
  ClaimedFolder& operator=(const ClaimedFolder&) = delete;

 private:
  void lock(const std::string& command, const fs::path& out);
  void remove_created() const;

  fs::path folder_;
  std::vector<fs::path> created_;  // folders that the constructor created, the deepest first
  std::optional<FolderLock> lock_;
};

}  // namespace lathe
