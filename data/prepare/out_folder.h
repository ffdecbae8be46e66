// The making of data folders: progress, stops, and publishing either all files or none. No LibTorch
// header.
//
// Shards get their names when all are written and the manifest is on disk as
// .unfinished-manifest.json, which is renamed last. A repeated command recognizes an interrupted
// preparation by that file, and removes the files that it lists if their checksums match.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/io/claimed_folder.h"
#include "core/io/file.h"
#include "core/io/progress.h"
#include "core/timing.h"
#include "data/prepare/progress.h"

namespace lathe {

/// Shows the progress of a preparation, and ends it on the caller's request.
class ProgressReporter {
 public:
  /// Both must outlive this object; `stop` may be empty.
  ProgressReporter(const fs::path& out, const std::function<bool()>& stop)
      : out_(out), stop_(stop) {}
  /// Begins a stage with its name and its bytes (0: unknown), which the progress bar shows.
  void begin(const char* doing, uint64_t bytes) {
    done_ = 0;
    began_ = Clock::now();
    bar_.emplace(doing, static_cast<double>(bytes));
  }
  static constexpr size_t piece = size_t{4} << 20;  ///< bytes of input between two calls of advance
  /// Adds bytes to the progress. Throws Exit::stopped where `stop` returns true.
  void advance(uint64_t bytes);
  /// Notes that a stop loses nothing from now on, for its message.
  void resumable() { resumable_ = true; }

 private:
  const fs::path& out_;
  const std::function<bool()>& stop_;
  uint64_t done_ = 0;
  bool resumable_ = false;
  Clock::time_point began_{};
  std::optional<ProgressBar> bar_;
};

/// The record of a preparation's progress, kept in the data folder until it is published.
class Journal {
 public:
  /// `command`: everything that must be unchanged for a preparation to resume, of any length.
  Journal(const fs::path& out, const std::string& command);
  /// Returns the progress of an interrupted preparation by the same command; nullopt where there is
  /// no record or, with a warning, where it is damaged.
  std::optional<Progress> read() const;
  /// Replaces the record, durably.
  void write(const Progress& progress) const;
  /// Throws Exit::data, since the input of the finished parts has changed.
  [[noreturn]] void input_changed() const;
  /// The name to pass to OutFolder::clear.
  static constexpr const char* name = "manifest.json-progress";

 private:
  std::string file() const;

  fs::path out_;
  std::string command_;  // its digest
};

/// A finished file of a data folder.
struct MadeFile {
  std::string file, xxh3;
};

/// The locked destination of a data folder. Its files are written under names that nothing reads,
/// and get their final names when all exist, the manifest last. If a process ends in between, the
/// next OutFolder recognizes the files that belong to it. On failure everything created is removed,
/// and so is the folder if it is new.
class OutFolder {
 public:
  /// Locks the folder. Throws Exit::busy where another process prepares data there.
  explicit OutFolder(const fs::path& path);
  ~OutFolder();
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;

  /// Throws Exit::usage where the folder holds data that is not from an interrupted preparation.
  static void check(const fs::path& path);
  /// Removes the files of an interrupted preparation. Published files without a manifest are
  /// recognized by the manifest that was about to be written and by their checksums. Throws
  /// Exit::usage where there is any other data. Unfinished files with the names in `but` stay.
  void clear(const std::vector<std::string>& but = {});
  /// Keeps unfinished files from now on, even on failure: the next preparation resumes from them.
  void keep() { keep_ = true; }
  bool kept() const { return keep_; }
  /// Returns the path of a file before it gets its name, "train..." or "val..." with .bin or .npy.
  static fs::path unfinished(const fs::path& folder, const std::string& file);
  /// Calls `write`, which writes the manifest under the given name, then gives the finished files
  /// their names, removes the record of the progress, and finally gives the manifest its own name.
  void publish(const std::vector<MadeFile>& files,
               const std::function<void(const std::string& name)>& write);

 private:
  std::vector<std::string> unfinished_files() const;

  fs::path path_;
  ClaimedFolder claim_;
  // Unfinished files of an interrupted preparation must stay until clear() has run.
  bool keep_ = true;
};

}  // namespace lathe
