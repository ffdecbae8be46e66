// Files that survive a crash: checked writes, fsync of file and folder, read-only maps whose truncation is an error
// rather than a crash of unknown cause, and a lock on a run folder. Every error names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

namespace fs = std::filesystem;

/// A file open for writing. Errors throw Exit::io; the destructor closes without checking, so call sync() first.
class OutputFile {
 public:
  enum class Open { create, append };
  OutputFile() = default;
  OutputFile(const fs::path& path, Open how);
  OutputFile(OutputFile&& o) noexcept;
  OutputFile& operator=(OutputFile&& o) noexcept;
  ~OutputFile();

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void sync();
  /// Bytes in the file now.
  uint64_t size() const;
  bool is_open() const { return fd_ >= 0; }

 private:
  fs::path path_;
  int fd_ = -1;
};

/// Makes what was created or renamed in `folder` survive a crash.
void sync_folder(const fs::path& folder);
/// Writes a whole file and syncs it and its folder; readers see the old file or the new one.
void write_file_durably(const fs::path& path, std::string_view text);
/// A whole file; one larger than `limit` bytes, or unreadable, is an error with this exit code.
std::string read_file(const fs::path& path, Exit code, uint64_t limit = uint64_t{1} << 30);
/// Creates folders as mkdir -p does; false where it was there. Exit::io where it can't.
bool make_folders(const fs::path& folder);

/// A file mapped read-only. If it is cut short by another program while mapped, the process ends with Exit::data and a
/// sentence that names it.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const fs::path& path, Exit code);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }
  /// Gives the memory of whole pages in `part` back; they are read again when they are wanted.
  void release(std::span<const std::byte> part) const;

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

/// An exclusive lock on a folder for the life of the object (flock on its file "lock"), freed by the kernel however the
/// process ends. Exit::busy where another process holds it.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder);
  ~FolderLock();
  /// Exit::io where the folder is not the one that was locked any more: removed, renamed or replaced.
  void check_in_place() const;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  fs::path folder_;
  int fd_ = -1;
};

/// A named moment at which the tests may end the process (see tests/faults.cc); nothing in a normal process.
using FaultHook = void (*)(const char* point);
extern FaultHook fault_hook;
inline void fault_point(const char* point) {
  if (fault_hook != nullptr) [[unlikely]]
    fault_hook(point);
}

}  // namespace lathe
