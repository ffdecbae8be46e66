// A folder that a command creates with all of its files, or not at all.
#pragma once

#include <functional>
#include <optional>

#include "core/io/claimed_folder.h"

namespace lathe {

/// Reports whether the user asked the command to stop.
using StopAsked = std::function<bool()>;

/// A folder that is written under another name, beside it, and gets its own in publish(). Without
/// publish() nothing stays; what a killed process leaves is removed when the next command names the
/// same folder.
class NewFolder {
 public:
  /// Exit::usage where `path` holds anything, or where a folder that Lathe did not write has the
  /// name that is needed; Exit::busy where another process writes `path`. `stop` may be empty.
  explicit NewFolder(const fs::path& path, StopAsked stop = nullptr);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write.
  const fs::path& path() const { return contents_; }
  /// Throws Exit::stopped if `stop` returns true.
  void check_stop() const;
  /// Gives the folder its name, durably. Exit::stopped as check_stop().
  void publish();

 private:
  void check_free() const;

  fs::path path_, unfinished_, contents_;
  StopAsked stop_;
  std::optional<ClaimedFolder> claim_;
};

}  // namespace lathe
