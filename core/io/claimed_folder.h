// A folder that only one command at a time can write to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Locks a folder for a command that writes to it. The destructor removes what the constructor
/// created: the lock file, and the folder with its parents if they were missing and are still
/// empty.
class ClaimedFolder {
 public:
  /// The lock file. A process that is killed leaves it behind, and the next command removes it.
  static constexpr const char* lock_name = ".unfinished-lock";

  /// Creates the folder if it is missing, and locks it. Throws Exit::busy if another process holds
  /// it. The message shows `out`, the user's --out, in place of `folder`, and states that another
  /// `command` writes there.
  ClaimedFolder(const fs::path& folder, const std::string& command, const fs::path& out);
  /// Does the same for the folder `out`.
  ClaimedFolder(const fs::path& out, const std::string& command)
      : ClaimedFolder(out, command, out) {}
  ~ClaimedFolder();
  ClaimedFolder(const ClaimedFolder&) = delete;
  ClaimedFolder& operator=(const ClaimedFolder&) = delete;

 private:
  void lock(const std::string& command, const fs::path& out);
  void remove_created() const;

  fs::path folder_;
  std::vector<fs::path> created_;  // folders that were missing, the deepest first
  std::optional<FolderLock> lock_;
};

}  // namespace lathe
