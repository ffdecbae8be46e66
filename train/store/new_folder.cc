#include "train/store/new_folder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "train/config/path_kind.h"

namespace lathe {
namespace {

constexpr const char* contents_name = "unfinished";

/// Returns whether an interrupted command left the folder `unfinished`. Such a folder is empty, or
/// holds only the lock file and possibly the contents.
bool is_left_by_a_command(const fs::path& unfinished) {
  if (!fs::is_directory(fs::symlink_status(unfinished))) return false;

  const std::vector<fs::path> inside = list_folder(unfinished);
  const auto holds = [&](const char* name) {
    return std::ranges::find(inside, unfinished / name) != inside.end();
  };
  const size_t known = (holds(ClaimedFolder::lock_name) ? 1 : 0) + (holds(contents_name) ? 1 : 0);
  return inside.empty() || (holds(ClaimedFolder::lock_name) && inside.size() == known);
}

}  // namespace

NewFolder::NewFolder(const fs::path& path, StopAsked stop)
    : path_(without_trailing_slash(path)),
      unfinished_(path_.parent_path() / (".unfinished-" + path_.filename().string())),
      contents_(unfinished_ / contents_name),
      stop_(std::move(stop)) {
  check_free();
  claim_.emplace(unfinished_, "lathe command", path_);

  check_free();  // another command may have written `path` before the claim
  remove_tree(contents_);
  make_folders(contents_);
  fault_point("new folder: created");
}

NewFolder::~NewFolder() {
  try {
    remove_tree(contents_);
  } catch (const Error&) {  // the caller reports the first error
  }

  claim_.reset();
  std::error_code error;
  // The claim removes the folder only if it created the folder. Also remove a folder that a killed
  // command left.
  fs::remove(unfinished_, error);
}

void NewFolder::check_free() const {
  if (fs::exists(path_) && !(fs::is_directory(path_) && fs::is_empty(path_)))
    fail(Exit::usage, path_.string(), " already exists; give another --out, or remove it");
  if (fs::is_symlink(path_)) {
    fail(Exit::usage, path_.string(),
         " is a symbolic link, which a folder can't replace; give the path that the link leads to "
         "as "
         "--out");
  }

  if (fs::exists(fs::symlink_status(unfinished_)) && !is_left_by_a_command(unfinished_)) {
    fail(Exit::usage, unfinished_.string(), " was not left by lathe, but ", path_.string(),
         " is first written under this name; rename it, or give another --out");
  }
}

void NewFolder::check_stop() const {
  if (stop_ && stop_())
    fail(Exit::stopped, "stopped; nothing is left in ", path_.string(),
         "; run the same command again to write it");
}

void NewFolder::publish() {
  fault_point("new folder: written");
  check_stop();

  sync_folder(contents_);
  rename_file(contents_, path_);
  fault_point("new folder: renamed");
  sync_folder(fs::absolute(path_).parent_path());
}

}  // namespace lathe
