// Files that survive a crash: checked writes, fsync of file and folder, read-only mappings whose
// truncation is reported with the file's name instead of a bare SIGBUS, and a lock on a folder.
// Every error names the path.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lathe {

namespace fs = std::filesystem;

/// The system calls through which Lathe changes files. Each has the meaning of the C library's
/// function of the same name. Only tests replace them, to record calls and to make them fail.
struct FileCalls {
  int (*open)(const char* path, int flags, mode_t mode);
  ssize_t (*write)(int fd, const void* data, size_t bytes);
  int (*fsync)(int fd);
  int (*close)(int fd);
  int (*ftruncate)(int fd, off_t length);
  int (*flock)(int fd, int operation);
  int (*rename)(const char* from, const char* to);
  int (*mkdir)(const char* path, mode_t mode);
  int (*unlink)(const char* path);
  int (*rmdir)(const char* path);
  ssize_t (*pread)(int fd, void* data, size_t bytes, off_t offset);
  ssize_t (*pwrite)(int fd, const void* data, size_t bytes, off_t offset);
  int (*fallocate)(int fd, int mode, off_t offset, off_t length);
};
extern FileCalls file_calls;

/// Calls `call`, repeats the call as long as a signal interrupts it, and returns the last result.
template <class Call>
auto retry_interrupted(Call&& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

/// An error that the system reported for a file, with advice on what to do.
class FileError : public Error {
 public:
  FileError(Exit code, const std::string& cause, int number);
  /// Returns what happened, without the advice on what to do.
  const std::string& cause() const { return cause_; }
  /// Returns errno, or 0 if the system reported no error because the path is not a regular file.
  int number() const { return number_; }
  /// Returns whether the disk is full or the user's quota is exhausted.
  bool is_full() const;

 private:
  std::string cause_;
  int number_;
};

/// A regular file open for writing. Errors throw FileError with Exit::io. The destructor closes
/// without checking, so call sync() and close() first.
class OutputFile {
 public:
  /// `create`: creates or truncates the file; `append`: writes after its end.
  enum class Open { create, append };
  OutputFile() = default;
  /// Opens a file. `shown`: the path that errors name, for use if `path` is temporary. Empty:
  /// `path`.
  OutputFile(const fs::path& path, Open how, const fs::path& shown = {});
  OutputFile(OutputFile&& o) noexcept;
  OutputFile& operator=(OutputFile&& o) noexcept;
  ~OutputFile();

  /// Writes all bytes or throws; interrupted and short writes are continued.
  void write(const void* data, size_t bytes);
  /// Writes all bytes of a text, or throws.
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Waits until all that was written is on the disk (fsync).
  void sync();
  /// Closes the file. Throws if the system reports an error then.
  void close();
  /// Sets whether later writes bypass the page cache (O_DIRECT), if the file system supports that.
  /// Writes that bypass it must begin and end at multiples of 4096 bytes, both in the file and in
  /// memory; any other write turns this off.
  void bypass_cache(bool on);
  /// Returns the file's current size in bytes.
  uint64_t size() const;
  bool is_open() const { return fd_ >= 0; }

 private:
  fs::path path_;
  int fd_ = -1;
};

/// Writes a file in parts of 8 MiB that bypass the page cache if the file system supports that
/// (O_DIRECT). The page cache would cost another copy and up to 2 s of CPU time for 1.5 GB, which
/// would slow down training during a save in the background. `file` must be empty.
class LargeWrites {
 public:
  explicit LargeWrites(OutputFile& file) : file_(file) {}
  /// Appends bytes. Throws FileError as OutputFile::write() does.
  void add(const void* data, size_t bytes);
  /// Writes the remaining bytes. Call it before sync().
  void finish();

 private:
  void write();

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  OutputFile& file_;
  std::unique_ptr<std::byte, Free> part_;  // begins at a page; allocated by the first add()
  size_t used_ = 0;
};

/// Syncs a folder, so that files that were created or renamed in it survive a crash.
void sync_folder(const fs::path& folder);
/// Writes an entire file and syncs it and its folder; readers see either the old file or the new
/// one.
void write_file_durably(const fs::path& path, std::string_view text);
/// Reads an entire regular file. Throws with this exit code if it is larger than `limit` bytes or
/// unreadable.
std::string read_file(const fs::path& path, Exit code, uint64_t limit = uint64_t{1} << 30);

// Each of the following functions throws FileError with Exit::io if it fails. They sync only what
// their comments state.

/// Creates a folder and its missing parents, as mkdir -p does, and syncs the parent of each folder
/// that it creates. Returns false if the folder existed.
bool make_folders(const fs::path& folder);
/// Returns the paths of a folder's entries in no particular order; none if there is no folder.
std::vector<fs::path> list_folder(const fs::path& folder);
/// Returns the extension of a file name in lowercase letters: ".csv" for "A.CSV".
std::string lower_extension(const fs::path& path);
/// Returns `folder` if it exists, otherwise its nearest parent that exists. If `folder` is created
/// later, it is on the same disk as the result.
fs::path nearest_folder(const fs::path& folder);
/// Replaces `to` atomically, as rename(2) does.
void rename_file(const fs::path& from, const fs::path& to);
/// Truncates a file to `length` bytes and syncs it.
void truncate_file(const fs::path& path, uint64_t length);
/// Removes a file, or a folder with everything in it, without following links. Does nothing if
/// there is none.
void remove_tree(const fs::path& path);

/// Watches addresses to which a scratch file in `folder` is mapped. While alive, if the disk fails
/// to read or write a page of them, the process ends with Exit::io and an error that names
/// `folder`.
class ScratchWatch {
 public:
  ScratchWatch(const fs::path& folder, const std::byte* begin, size_t bytes);
  ~ScratchWatch();
  ScratchWatch(const ScratchWatch&) = delete;
  ScratchWatch& operator=(const ScratchWatch&) = delete;

 private:
  int slot_;
};

/// A regular file mapped read-only. If another program truncates it while it is mapped, the process
/// ends with Exit::data and an error that names the file.
class MappedFile {
 public:
  MappedFile() = default;
  /// Maps a file. Throws FileError with `code` if it can't be read or is not a regular file.
  MappedFile(const fs::path& path, Exit code);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Returns the path with which the file was opened.
  const fs::path& path() const { return path_; }
  /// Releases the memory of the complete pages in `part`; they are read again when they are needed.
  void release(std::span<const std::byte> part) const;

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

/// An exclusive lock on a folder for the life of the object (flock on a file in it). The operating
/// system releases the lock however the process ends. Throws Exit::busy if another process holds
/// it.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder, const std::string& file = "lock");
  ~FolderLock();
  /// Throws Exit::io if the folder is no longer the one that was locked: removed, renamed or
  /// replaced.
  void check_in_place() const;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  fs::path folder_, file_;
  int fd_ = -1;
};

/// A function that is called at named points, where tests may end the process (see
/// tests/support/faults/main.cc). Null in a normal process.
using FaultHook = void (*)(const char* point);
extern FaultHook fault_hook;
/// Calls fault_hook at a named point, where tests may end the process. Does nothing in a normal
/// process.
inline void fault_point(const char* point) {
  if (fault_hook != nullptr) [[unlikely]]
    fault_hook(point);
}

}  // namespace lathe
