// What a disk may hold after a power cut: a recorder of the calls in core/io/file.h's table, and a
// generator of the states that POSIX allows after any of them.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace lathe::test {

/// One change of the disk. Files and folders are numbers; folder 0 is the one that is recorded.
struct DiskCall {
  enum class Kind { none, create, make_folder, rename, remove, write, cut, sync };
  Kind kind = Kind::none;
  int node = -1;         ///< what is created, renamed, removed, written to, cut or synced
  int folder = -1;       ///< of a name
  std::string name, to;  ///< its name; the new one
  size_t offset = 0;     ///< of what is written, or the length to cut to
  std::string data;
};

/// Records the calls on what is under a folder, from construction to stop(), while they are carried
/// out, one after another also where threads make them. One record at a time. What is in the folder
/// at the beginning counts as durable.
class DiskRecord {
 public:
  explicit DiskRecord(const fs::path& folder);
  ~DiskRecord() { stop(); }
  DiskRecord(const DiskRecord&) = default;  ///< of a record that has stopped
  DiskRecord& operator=(const DiskRecord&) = delete;
  /// Puts the system's own calls back.
  void stop();

  const std::vector<DiskCall>& calls() const { return calls_; }
  /// The fault points that the process came to, each with the number of calls before it.
  const std::vector<std::pair<size_t, std::string>>& points() const { return points_; }
  /// Fault points of this name among the first `n` calls.
  size_t points_before(size_t n, const std::string& name) const;
  /// Turns fsync of all files, or of all folders, into nothing, as a program without it would have
  /// run.
  void drop_syncs(bool of_folders);

  /// How much of what was not yet synced is there.
  enum class Keep { none, all, folders_alone, zeros, random };
  /// Makes `into` (new) hold what may be there after a power cut behind the first `n` calls. Of
  /// what was not yet synced: of each folder's changes, a number of the first ones; of each file's
  /// data, the same, the next one torn at any byte, and behind it nothing, or zeros up to the
  /// length, or zeros in the middle.
  void crash(size_t n, Keep keep, std::mt19937& random, const fs::path& into) const;

  /// For the calls that stand in for the system's.
  struct Open {
    int node;
    bool append;
    size_t offset;
  };
  struct Node {
    bool is_folder = false;
    std::string data;                  ///< at the beginning
    std::map<std::string, int> names;  ///< at the beginning
    std::map<std::string, int> now;
    size_t size_now = 0;
  };
  int find(const fs::path& path) const;
  /// The folder's number and the name in it; -1 outside.
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
