// Simulates power cuts: records the calls in core/io/file.h's table, and generates the states of
// the disk that POSIX allows after any of them.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace lathe::test {

/// One change of the disk. Files and folders are numbered; number 0 is the recorded folder.
struct DiskCall {
  enum class Kind { none, create, make_folder, rename, remove, write, cut, sync };
  Kind kind = Kind::none;
  int node = -1;         ///< the file or folder that the call changes or syncs
  int folder = -1;       ///< the folder that contains `name`; -1 for calls on open files
  std::string name, to;  ///< the name in `folder`, and for a rename the new name
  size_t offset = 0;     ///< of the written bytes, or the length to cut to
  std::string data;
};

/// Carries out and records the calls on files and folders under a folder, from construction to
/// stop(). Calls of several threads are serialized. Only one record may be active. The contents of
/// the folder at construction count as durable.
class DiskRecord {
 public:
  explicit DiskRecord(const fs::path& folder);
  ~DiskRecord() { stop(); }
  DiskRecord(const DiskRecord&) = default;  ///< only for a record that has stopped
  DiskRecord& operator=(const DiskRecord&) = delete;
  /// Stops recording and restores the system's calls.
  void stop();

  const std::vector<DiskCall>& calls() const { return calls_; }
  /// Returns the fault points that the process reached, each with the number of calls before it.
  const std::vector<std::pair<size_t, std::string>>& points() const { return points_; }
  /// Returns the number of fault points of this name among the first `n` calls.
  size_t points_before(size_t n, const std::string& name) const;
  /// Removes all syncs of files, or of folders, as in a program without them.
  void drop_syncs(bool of_folders);

  /// The unsynced changes that a power cut keeps: none, all, only changes of folders, changes of
  /// folders with zeros as the data of files, or a random part.
  enum class Keep { none, all, folders_alone, zeros, random };
  /// Creates the folder `into` with contents that a power cut after the first `n` calls may leave.
  /// Of its unsynced changes, each folder keeps the first few, in order. Each file keeps its first
  /// few writes. The next write may be torn: cut off at any byte, followed by zeros up to its full
  /// length, or with zeros in the middle.
  void crash(size_t n, Keep keep, std::mt19937& random, const fs::path& into) const;

  /// State for the functions that replace the system's calls.
  struct Open {
    int node;
    bool append;
    size_t offset;
  };
  struct Node {
    bool is_folder = false;
    std::string data;                  ///< when recording began
    std::map<std::string, int> names;  ///< when recording began
    std::map<std::string, int> now;
    size_t size_now = 0;
  };
  int find(const fs::path& path) const;
  /// Returns the number of the folder that contains `path`, and the name in it; -1 if it is not
  /// recorded.
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
