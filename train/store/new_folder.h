// Declares a folder that a command creates with all of its files, or not at all.
#pragma once

#include <functional>
#include <optional>

#include "core/io/claimed_folder.h"

namespace lathe {

/// Returns whether the user asked the command to stop.
using StopAsked = std::function<bool()>;

/// Writes a folder under a temporary name next to its path. publish() renames it to its path. If
/// publish() was not called, the destructor removes the folder. If a process is killed, the next
/// command that writes the same path removes what the process left.
class NewFolder {
 public:
  /// Locks the temporary folder. Throws Exit::usage if `path` exists and is not an empty folder, or
  /// if Lathe did not write the folder with the temporary name. Throws Exit::busy if another
  /// process writes `path`. `stop` may be empty.
  explicit NewFolder(const fs::path& path, StopAsked stop = nullptr);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Returns the folder to write to.
  const fs::path& path() const { return contents_; }
  /// If `stop` returns true, throws Exit::stopped.
  void check_stop() const;
  /// Renames the folder to its path, durably. If `stop` returns true, throws Exit::stopped instead.
  void publish();

 private:
  void check_free() const;

  fs::path path_, unfinished_, contents_;
  StopAsked stop_;
  std::optional<ClaimedFolder> claim_;
};

}  // namespace lathe
