#include "data/prepare/out_folder.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "data/folder.h"

namespace lathe {
namespace {

constexpr const char* unfinished_prefix = ".unfinished-";
const std::string marker = str(unfinished_prefix, "manifest.json");

/// Returns whether a file of that name belongs to a split: "train.bin", "val_000001.bin",
/// "train_inputs.npy".
bool is_data_name(std::string_view name) {
  return (name.starts_with("train") || name.starts_with("val")) &&
         (name.ends_with(".bin") || name.ends_with(".npy"));
}

/// Returns whether a file is a shard of a named set: "fineweb_train_000001.bin".
bool is_named_shard(const std::string& name) {
  const std::string words =
      "_" + name.substr(0, name.size() - std::min<size_t>(4, name.size())) + "_";
  return name.ends_with(".bin") &&
         (words.find("_train_") != std::string::npos || words.find("_val_") != std::string::npos);
}

/// Collects the files that a manifest of any kind lists: all JSON objects with "file" and "xxh3".
void collect_files(const Json& json, const std::string& where, std::vector<FinishedFile>& found) {
  if (json.is_object() && json.contains("file") && json.contains("xxh3"))
    found.push_back({manifest_file(json, "file", where),
                     json_get<std::string>(json, "xxh3", where, Exit::data)});
  if (!json.is_structured()) return;
  for (const auto& value : json) collect_files(value, where, found);
}

}  // namespace

void ProgressReporter::advance(uint64_t bytes) {
  done_ += bytes;
  if (stop_ && stop_()) {
    if (resumable_)
      fail(Exit::stopped, "stopped; run the same command again to resume; the finished part is in ",
           out_.string());
    fail(Exit::stopped, "stopped; nothing is left in ", out_.string(),
         "; run the same command again to start over");
  }
  const double seconds = seconds_since(began_);
  const auto done = static_cast<double>(done_);
  bar_->show(done, {format("%.1f MB", done / 1e6),
                    format("%.0f MB/s", seconds > 0 ? done / 1e6 / seconds : 0)});
}

Journal::Journal(const fs::path& out, const std::string& command) : out_(out) {
  const Digest d = digest(command);
  command_ = str(d.high, "-", d.low);
}

std::string Journal::file() const { return OutFolder::unfinished(out_, name).filename().string(); }

std::optional<Progress> Journal::read() const try {
  const auto record = read_manifest_json(out_, file());
  return record ? read_progress(*record, command_, (out_ / file()).string()) : std::nullopt;
} catch (const Error& e) {
  log_warn(e.what(), "; starting over");
  return std::nullopt;
}

void Journal::write(const Progress& progress) const {
  write_manifest_json(out_, progress_record(progress, command_), file());
  fault_point("prepare: progress written");
}

void Journal::fail_input_changed() const {
  fail(Exit::data, "the input is not the same as before this command was interrupted; remove ",
       out_.string(), " to start over");
}

OutFolder::OutFolder(const fs::path& path) : path_(path), claim_(path, "`lathe prepare`") {}

OutFolder::~OutFolder() {
  if (keep_) return;

  std::error_code error;
  for (const auto& name : unfinished_files()) fs::remove(path_ / name, error);
}

void OutFolder::check(const fs::path& path) {
  const bool interrupted = fs::exists(path / marker);
  bool holds = fs::exists(path / "manifest.json");
  if (!interrupted && !holds && fs::is_directory(path)) {
    for (const auto& file : list_folder(path)) {
      const std::string name = file.filename().string();
      holds = holds || is_data_name(name) || is_named_shard(name);
    }
  }
  if (holds)
    fail(Exit::usage, path.string(), " already holds data; remove it or give another --out");
}

void OutFolder::clear(const std::vector<std::string>& but) {
  check(path_);

  // Files with their final names look like any other data. The unfinished manifest and its
  // checksums identify them.
  if (const auto left = read_manifest_json(path_, marker)) {
    const std::string where = (path_ / marker).string();
    check_manifest_checksum(*left, where);
    std::vector<FinishedFile> files;
    collect_files(*left, where, files);
    for (const auto& [name, xxh3] : files) {
      const fs::path file = path_ / name;
      if (!fs::exists(file)) continue;
      if (file_checksum(file) != xxh3) {
        fail(Exit::usage, file.string(),
             " is not what an interrupted `lathe prepare` left there; move it away, or give "
             "another --out");
      }
      remove_tree(file);
    }
  }

  // These removals must be on disk before the unfinished manifest, which identifies the files, is
  // removed.
  sync_folder(path_);
  for (const auto& name : unfinished_files()) {
    if (std::find(but.begin(), but.end(), name.substr(std::strlen(unfinished_prefix))) == but.end())
      remove_tree(path_ / name);
  }

  // The unfinished manifest is gone, so any remaining data is not from an interrupted preparation.
  check(path_);
  keep_ = false;
}

fs::path OutFolder::unfinished(const fs::path& folder, const std::string& file) {
  return folder / (unfinished_prefix + file);
}

void OutFolder::publish(const std::vector<FinishedFile>& files,
                        const std::function<void(const std::string& name)>& write) {
  fault_point("prepare: shards written");
  write(marker);
  // From here on, the next clear() recognizes all files by the unfinished manifest, so they may
  // stay on failure.
  keep_ = true;
  fault_point("prepare: manifest written");
  for (const auto& made : files) {
    rename_file(unfinished(path_, made.file), path_ / made.file);
    fault_point("prepare: shard renamed");
  }
  // Remove the record of the progress before the manifest gets its name, so that no record is left
  // if the process ends in between.
  remove_tree(unfinished(path_, Journal::name));
  sync_folder(path_);
  rename_file(path_ / marker, path_ / "manifest.json");
  fault_point("prepare: renamed");
  sync_folder(path_);
}

/// Returns the names of the files that lathe wrote and that do not have their final names yet.
std::vector<std::string> OutFolder::unfinished_files() const {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(path_, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const fs::directory_entry& entry = *at;
    std::error_code unknown;
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(unfinished_prefix)) continue;
    const std::string rest = name.substr(std::strlen(unfinished_prefix));
    if ((is_data_name(rest) || rest.starts_with("manifest.json")) && entry.is_regular_file(unknown))
      found.push_back(name);
  }
  return found;
}

}  // namespace lathe
