// How data folders are made: progress, stops, and files that are there whole or not at all. No
// LibTorch header.
//
// Shards get their names when all are written and the manifest is on disk as
// .unfinished-manifest.json, which is renamed last. A repeated command recognizes an
// interrupted preparation by that file and removes the files that it lists with matching
// checksums.
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

/// Shows how far the making of a data folder is, and ends it where the caller says so.
class ProgressReporter {
 public:
  /// Both must outlive the meter; `stop` may be empty.
  ProgressReporter(const fs::path& out, const std::function<bool()>& stop)
      : out_(out), stop_(stop) {}
  /// Names the stage and its bytes (0: not known), for the progress that is shown.
  void begin(const char* doing, uint64_t bytes) {
    done_ = 0;
    began_ = Clock::now();
    bar_.emplace(doing, static_cast<double>(bytes));
  }
  static constexpr size_t piece = size_t{4} << 20;  ///< bytes of input between two calls of advance
  /// Exit::stopped where `stop` says so.
  void advance(uint64_t bytes);
  /// From now on a stop loses nothing.
  void resumable() { resumable_ = true; }

 private:
  const fs::path& out_;
  const std::function<bool()>& stop_;
  uint64_t done_ = 0;
  bool resumable_ = false;
  Clock::time_point began_{};
  std::optional<ProgressBar> bar_;
};

/// Keeps how far the making of a data folder is, in that folder.
class Journal {
 public:
  /// `command`: what must be the same for a preparation to resume, of any length.
  Journal(const fs::path& out, const std::string& command);
  /// What a preparation of the same command left. Nothing where there is no record; nor, with a
  /// warning, where it is damaged.
  std::optional<Progress> read() const;
  /// Replaces the record, durably.
  void write(const Progress& progress) const;
  /// Removes it: all is done.
  void remove() const;
  /// Exit::data: the input of the parts that are done has become another.
  [[noreturn]] void input_changed() const;
  /// As OutFolder::clear takes it.
  static constexpr const char* name = "manifest.json-progress";

 private:
  std::string file() const;

  fs::path out_;
  std::string command_;  ///< its digest
};

/// A file of a data folder that is being made.
struct MadeFile {
  std::string file, xxh3;
};

/// The folder that data goes to, locked. Its files are written under names that nothing reads and
/// get their own when all are there, the manifest last; whenever that is cut short, the next
/// OutFolder can tell what belongs to it. Unless all went well, what was made in it goes again, and
/// the folder too where it was not there.
class OutFolder {
 public:
  /// Exit::busy where another process prepares data there.
  explicit OutFolder(const fs::path& path);
  ~OutFolder();
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;

  /// Exit::usage where the folder holds data that no interrupted preparation left there.
  static void check(const fs::path& path);
  /// Removes what an interrupted preparation left: files that have their names but no manifest
  /// beside them are recognized by the manifest that was about to be written, and by their
  /// checksums. Exit::usage where there is anything else. Unfinished files of the names in `but`
  /// stay.
  void clear(const std::vector<std::string>& but = {});
  /// From now on unfinished files stay, whatever happens: they tell the next preparation what is
  /// done.
  void keep() { keep_ = true; }
  bool kept() const { return keep_; }
  /// Where a file is until it gets its name, "train..." or "val..." with .bin or .npy.
  static fs::path unfinished(const fs::path& folder, const std::string& file);
  /// Gives the finished files their names, once `write` has written the manifest under the name it
  /// is called with, and the manifest its own last.
  void publish(const std::vector<MadeFile>& files,
               const std::function<void(const std::string& name)>& write);

 private:
  std::vector<std::string> unfinished_files() const;

  fs::path path_;
  ClaimedFolder claim_;
  bool keep_ =
      true;  // what is unfinished tells what an interrupted preparation has done, and must stay
};

}  // namespace lathe
