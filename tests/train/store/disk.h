// Simulates power cuts: records the file calls that are made through the table in core/io/file.h,
// and generates the states of the disk that POSIX allows after any of these calls.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace lathe::test {

/// A call that changes or syncs the disk. Files and folders are numbered; number 0 is the recorded
/// folder.
struct DiskCall {
  enum class Kind { none, create, make_folder, rename, remove, write, cut, sync };
  Kind kind = Kind::none;
  int node = -1;         ///< number of the file or folder that the call changes or syncs
  int folder = -1;       ///< number of the folder that contains `name`; -1 for calls on open files
  std::string name, to;  ///< `name`: the name in `folder`; `to`: the new name, for a rename
  size_t offset = 0;     ///< offset of the written bytes; for `cut`, the new length
  /// Bytes that the call writes.
  std::string data;
};

/// Carries out and records the calls on files and folders below `folder`, from construction to
/// stop(). Calls of several threads are serialized. Only one record may be active. The contents
/// that the folder had at construction count as durable.
class DiskRecord {
 public:
  explicit DiskRecord(const fs::path& folder);
  ~DiskRecord() { stop(); }
  DiskRecord(const DiskRecord&) = default;  ///< copies a record that has stopped
  DiskRecord& operator=(const DiskRecord&) = delete;
  /// Stops recording and restores the system's calls.
  void stop();

  const std::vector<DiskCall>& calls() const { return calls_; }
  /// Returns the fault points that the process reached, each with the number of calls before it.
  const std::vector<std::pair<size_t, std::string>>& points() const { return points_; }
  /// Returns how many fault points named `name` were reached after at most `n` calls.
  size_t points_before(size_t n, const std::string& name) const;
  /// Removes the syncs of all files or, if `of_folders` is true, of all folders, as if the program
  /// did not make these calls.
  void drop_syncs(bool of_folders);

  /// The unsynced changes that a power cut keeps: none; all; only changes of folders; changes of
  /// folders, with zeros instead of the data of files; or a random part.
  enum class Keep { none, all, folders_alone, zeros, random };
  /// Creates the folder `into` with contents that a power cut after the first `n` calls may leave.
  /// With Keep::random, each folder keeps a random number of its unsynced changes, the earliest
  /// ones, and each file those of its unsynced writes. The remaining writes to a file may be torn:
  /// cut off at any byte, followed by zeros up to the new length of the file, or with zeros in the
  /// middle.
  void crash(size_t n, Keep keep, std::mt19937& random, const fs::path& into) const;

  /// An open file, for the functions that replace the system's calls.
  struct Open {
    int node;
    bool append;
    size_t offset;
  };
  struct Node {
    bool is_folder = false;
    std::string data;                  ///< contents when recording began
    std::map<std::string, int> names;  ///< names and numbers of the entries when recording began
    std::map<std::string, int> now;
    size_t size_now = 0;
  };
  int find(const fs::path& path) const;
  /// Returns the number of the folder that contains `path`, and the name of `path` in that folder.
  /// The number is -1 if the folder is not recorded.
  std::pair<int, std::string> place(const fs::path& path) const;
  int add(bool is_folder);
  std::vector<Node> nodes;
  std::map<int, Open> open_files;
  std::vector<DiskCall> calls_;
  std::vector<std::pair<size_t, std::string>> points_;

 private:
  int read(const fs::path& path);
  fs::path root_;
};

}  // namespace lathe::test
