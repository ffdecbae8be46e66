// Creates data folders: shows progress, handles stops, and publishes either all files or none.
// Includes no LibTorch header.
//
// Data files get their final names once all of them are written and the manifest is on disk as
// .unfinished-manifest.json. The manifest is renamed last. If a command is interrupted between
// these steps, the next call of the same command finds .unfinished-manifest.json. That call then
// removes each file that .unfinished-manifest.json lists, if the file's checksum matches.
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

/// Shows the progress of a preparation, and ends the preparation on the caller's request.
class ProgressReporter {
 public:
  /// Creates a reporter for the data folder `out`. Both arguments must outlive this object; `stop`
  /// may be empty.
  ProgressReporter(const fs::path& out, const std::function<bool()>& stop)
      : out_(out), stop_(stop) {}
  /// Begins a stage of `bytes` bytes (0: unknown). The progress bar shows `doing` as its name.
  void begin(const char* doing, uint64_t bytes) {
    done_ = 0;
    began_ = Clock::now();
    bar_.emplace(doing, static_cast<double>(bytes));
  }
  /// How many bytes of input a caller should process between two calls of advance().
  static constexpr size_t piece = size_t{4} << 20;
  /// Adds bytes to the progress. Throws Exit::stopped if `stop` returns true.
  void advance(uint64_t bytes);
  /// Declares that from now on a stop loses nothing. The message of a stop then explains how to
  /// resume.
  void resumable() { resumable_ = true; }

 private:
  const fs::path& out_;
  const std::function<bool()>& stop_;
  uint64_t done_ = 0;
  bool resumable_ = false;
  Clock::time_point began_{};
  std::optional<ProgressBar> bar_;
};

/// The record of a preparation's progress, kept in the data folder until the folder's files are
/// published.
class Journal {
 public:
  /// Creates a journal for the data folder `out`. `command` is a text of any length with everything
  /// that must be unchanged to resume.
  Journal(const fs::path& out, const std::string& command);
  /// Returns the progress of an interrupted preparation by the same command. Returns nullopt if
  /// there is no record or if the record is from another command. If the record is damaged, logs a
  /// warning and returns nullopt.
  std::optional<Progress> read() const;
  /// Replaces the record, durably.
  void write(const Progress& progress) const;
  /// Throws Exit::data with the message that the input of the finished parts has changed.
  [[noreturn]] void fail_input_changed() const;
  /// The name to pass to OutFolder::clear.
  static constexpr const char* name = "manifest.json-progress";

 private:
  std::string file() const;

  fs::path out_;
  std::string command_;  // the digest of the constructor's `command`
};

/// A finished file of a data folder.
struct FinishedFile {
  std::string file, xxh3;
};

/// A locked data folder that is being written. Files are written under temporary names. When all
/// of them exist, they get their final names, the manifest last. If the process ends during the
/// renaming, the next OutFolder recognizes the files that were left. On failure, everything that
/// was created is removed, including the folder if it is new, unless keep() was called.
class OutFolder {
 public:
  /// Locks the folder. Throws Exit::busy if another process prepares data there.
  explicit OutFolder(const fs::path& path);
  ~OutFolder();
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;

  /// Throws Exit::usage if the folder holds data that is not from an interrupted preparation.
  static void check(const fs::path& path);
  /// Removes the files of an interrupted preparation, except unfinished files with the names in
  /// `but`. Files that already have their final names are recognized by the checksums in the
  /// unfinished manifest. Throws Exit::usage if there is any other data.
  void clear(const std::vector<std::string>& but = {});
  /// Keeps unfinished files from now on, even on failure, so that the next preparation resumes from
  /// these files.
  void keep() { keep_ = true; }
  /// Returns whether unfinished files stay on failure.
  bool kept() const { return keep_; }
  /// Returns the path that `file` has until it is published.
  static fs::path unfinished(const fs::path& folder, const std::string& file);
  /// Calls `write`, which must write the manifest under the name that it is given. Then gives the
  /// finished files their final names, removes the record of the progress, and renames the
  /// manifest.
  void publish(const std::vector<FinishedFile>& files,
               const std::function<void(const std::string& name)>& write);

 private:
  std::vector<std::string> unfinished_files() const;

  fs::path path_;
  ClaimedFolder claim_;
  // Whether unfinished files stay on failure. Files of an interrupted preparation must stay until
  // clear() has run.
  bool keep_ = true;
};

}  // namespace lathe
