// What data folders of every kind share: checksums of files and of manifest.json, and how they are made. No LibTorch
// header.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Writes NAME in `folder` durably, with a field "checksum": of all that it holds beside it.
void write_manifest_json(const fs::path& folder, Json json, const std::string& name = "manifest.json");
/// A folder's NAME, parsed; nullopt where there is none. Exit::data where it is no JSON.
std::optional<Json> read_manifest_json(const fs::path& folder, const std::string& name = "manifest.json");
/// Exit::data where a manifest is not what was written. One without a checksum, of an earlier build, passes.
void check_manifest_checksum(const Json& json, const std::string& where);
/// json[key] as the name of a file within the manifest's folder; Exit::data where it is none.
std::string manifest_file(const Json& json, const char* key, const std::string& where);

/// Checksum of all bytes where they are no more than `pieces` mebibytes, else of so many evenly spaced ones.
std::string sampled_checksum(std::span<const std::byte> bytes, size_t pieces);
/// Reads every byte and compares with the manifest's checksum. Exit::data with the file that differs, or that has none
/// (`xxh3` is empty); Exit::stopped once `stop`, asked every 16 MiB, says so.
void verify_file(const MappedFile& file, const std::string& xxh3, const std::function<bool()>& stop);

/// Shows how far the making of a data folder is, and ends it where the caller says so.
class Meter {
 public:
  /// Both must outlive the meter; `stop` may be empty.
  Meter(const fs::path& out, const std::function<bool()>& stop) : out_(out), stop_(stop) {}
  void begin(const char* doing, uint64_t bytes) { doing_ = doing, bytes_ = bytes, done_ = 0; }
  /// Call it every few megabytes of input. Exit::stopped where `stop` says so.
  void advance(uint64_t bytes);

 private:
  const fs::path& out_;
  const std::function<bool()>& stop_;
  const char* doing_ = "";
  uint64_t bytes_ = 0, done_ = 0;
};

/// A file of a data folder that is being made.
struct MadeFile {
  std::string file, xxh3;
};

/// The folder that data goes to, locked. Its files are written under names that nothing reads and get their own when
/// all are there, the manifest last; whenever that is cut short, the next OutFolder can tell what belongs to it. Unless
/// all went well, what was made in it goes again, and the folder too where it was not there.
class OutFolder {
 public:
  /// Exit::busy where another process prepares data there.
  explicit OutFolder(const fs::path& path);
  ~OutFolder();
  OutFolder(const OutFolder&) = delete;
  OutFolder& operator=(const OutFolder&) = delete;

  /// Exit::usage where the folder holds data that no interrupted preparation left there.
  static void check(const fs::path& path);
  /// Removes what an interrupted preparation left: files that have their names but no manifest beside them are told by
  /// the manifest that it was about to give them, and by their checksums. Exit::usage where there is anything else.
  void clear();
  /// Where a file is until it gets its name, "train..." or "val..." with .bin or .npy.
  static fs::path unfinished(const fs::path& folder, const std::string& file);
  /// Gives the finished files their names, once `write` has written the manifest under the name it is called with, and
  /// the manifest its own last.
  void publish(const std::vector<MadeFile>& files, const std::function<void(const std::string& name)>& write);

 private:
  std::vector<std::string> unfinished_files() const;

  fs::path path_;
  std::vector<fs::path> made_;  // that were not there, the deepest first
  bool had_lock_;               // a file of that name, which stays
  std::optional<FolderLock> lock_;
  bool keep_ = true;  // what is unfinished tells what an interrupted preparation has done, and must stay
};

}  // namespace lathe
