#include "core/io/claimed_folder.h"

#include <cerrno>

namespace lathe {

ClaimedFolder::ClaimedFolder(const fs::path& folder, const std::string& command,
                             const fs::path& out)
    : folder_(folder) {
  for (fs::path p = fs::absolute(folder).lexically_normal(); !fs::exists(p); p = p.parent_path())
    created_.push_back(p);

  try {
    lock(command, out);
  } catch (...) {
    remove_created();
    throw;
  }
  fault_point("folder claimed");
}

ClaimedFolder::~ClaimedFolder() {
  // Remove the lock file while this process still holds the lock. Afterwards, another process may
  // have locked the same file.
  std::error_code error;
  fs::remove(folder_ / lock_name, error);
  lock_.reset();

  remove_created();
}

void ClaimedFolder::lock(const std::string& command, const fs::path& out) {
  // The process that held the lock before may remove the folder or the lock file between two of
  // these calls. In that case, repeat the calls.
  constexpr int most_tries = 100;
  for (int tries = 1;; ++tries) {
    make_folders(folder_);

    try {
      lock_.emplace(folder_, lock_name);
      lock_->check_in_place();
      return;
    } catch (const FileError& e) {
      if (e.number() != ENOENT || tries == most_tries) throw;
    } catch (const Error& e) {
      if (e.code() == Exit::busy)
        fail(Exit::busy, out.string(), " is in use: another ", command,
             " writes there; wait for it, or give another --out");
      if (tries == most_tries) throw;
    }
    lock_.reset();
  }
}

void ClaimedFolder::remove_created() const {
  std::error_code error;
  // Folders that are not empty stay, since fs::remove() fails for them.
  for (const fs::path& folder : created_) fs::remove(folder, error);
}

}  // namespace lathe
