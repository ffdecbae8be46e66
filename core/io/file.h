// Declares functions for files that survive a crash. Every write is checked for errors, and files
// and folders are synced (fsync). If another program truncates a file that is mapped read-only, the
// process ends with a message that names the file, instead of a plain SIGBUS. Folders can be
// locked. Every error names the path.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lathe {

namespace fs = std::filesystem;

/// The system calls through which Lathe changes files. Each has the meaning of the C library's
/// function of the same name. Only tests replace these functions, to record calls and to make calls
/// fail.
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

/// Calls `call`. Repeats the call as long as a signal interrupts it. Returns the last result.
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
  /// Returns the errno that the system set; 0 if the error is that the path is not a regular file.
  int number() const { return number_; }
  /// Returns whether the disk is full or the user's quota is exhausted.
  bool is_full() const;

 private:
  std::string cause_;
  int number_;
};

/// A regular file that is open for writing. Operations that fail throw FileError with Exit::io. The
/// destructor closes the file without a check for errors, so call sync() and close() first.
class OutputFile {
 public:
  /// `create` creates or truncates the file. `append` writes after the end of the file.
  enum class Open { create, append };
  OutputFile() = default;
  /// Opens a file. Errors name `shown`, or `path` if `shown` is empty. Give `shown` if `path` is
  /// the name of a temporary file.
  OutputFile(const fs::path& path, Open how, const fs::path& shown = {});
  OutputFile(OutputFile&& o) noexcept;
  OutputFile& operator=(OutputFile&& o) noexcept;
  ~OutputFile();

  /// Writes all bytes, or throws. Continues after interrupted and short writes.
  void write(const void* data, size_t bytes);
  /// Writes all bytes of a text, or throws.
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Waits until everything that was written is on the disk (fsync).
  void sync();
  /// Closes the file. Throws if the system reports an error.
  void close();
  /// Sets whether later writes bypass the page cache (O_DIRECT), if the file system supports that.
  /// Writes that bypass the cache must begin and end at multiples of 4096 bytes, both in the file
  /// and in memory. Any other write turns bypassing off.
  void bypass_cache(bool on);
  /// Returns the file's current size in bytes.
  uint64_t size() const;
  bool is_open() const { return fd_ >= 0; }

 private:
  fs::path path_;
  int fd_ = -1;
};

/// Writes a file in parts of 8 MiB that bypass the page cache if the file system supports that
/// (O_DIRECT). Writing 1.5 GB through the page cache would require another copy and take up to 2 s
/// of CPU time. This would slow down training while a checkpoint is saved in the background. `file`
/// must be empty.
class LargeWrites {
 public:
  explicit LargeWrites(OutputFile& file) : file_(file) {}
  /// Appends bytes. Throws FileError as OutputFile::write() does.
  void add(const void* data, size_t bytes);
  /// Writes the remaining bytes. Call this function before sync().
  void finish();

 private:
  void write();

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  OutputFile& file_;
  std::unique_ptr<std::byte, Free> part_;  // the current part, which is aligned to a page; the
                                           // first add() allocates it
  size_t used_ = 0;
};

/// Syncs a folder, so that files that were created or renamed in it survive a crash.
void sync_folder(const fs::path& folder);
/// Writes an entire file, and syncs the file and its folder. Readers see either the old file or the
/// new file.
void write_file_durably(const fs::path& path, std::string_view text);
/// Reads an entire regular file. Throws with the exit code `code` if the file is larger than
/// `limit` bytes or can't be read.
std::string read_file(const fs::path& path, Exit code, uint64_t limit = uint64_t{1} << 30);
/// Reads a file from beginning to end, in parts of at most `part` bytes, and calls `use` with each
/// part. A part is valid only during the call. This is faster than a MappedFile for a file that is
/// read once. Throws FileError with `code` if the file can't be read or is not a regular file.
void read_in_parts(const fs::path& path, Exit code, size_t part,
                   const std::function<void(std::span<const std::byte>)>& use);

// Each of the following functions throws FileError with Exit::io if it fails. A function syncs a
// file or folder only if its comment states that.

/// Creates a folder and its missing parents, as mkdir -p does. Syncs the parent of each folder that
/// it creates. Returns false if `folder` already existed.
bool make_folders(const fs::path& folder);
/// Returns the paths of a folder's entries in no particular order. Returns none if the folder does
/// not exist.
std::vector<fs::path> list_folder(const fs::path& folder);
/// Returns the extension of a file name in lowercase letters: ".csv" for "A.CSV".
std::string lower_extension(const fs::path& path);
/// Returns `folder` if it exists, otherwise its nearest parent that exists. If `folder` is created
/// later, it will be on the same disk as the returned folder.
fs::path nearest_folder(const fs::path& folder);
/// Replaces `to` atomically, as rename(2) does.
void rename_file(const fs::path& from, const fs::path& to);
/// Truncates a file to `length` bytes and syncs it.
void truncate_file(const fs::path& path, uint64_t length);
/// Removes a file, or a folder with everything in it, without following links. Does nothing if
/// `path` does not exist.
void remove_tree(const fs::path& path);

/// Watches the addresses to which a scratch file in `folder` is mapped, until destroyed. If a page
/// at these addresses can't be read from the disk or written to it, the process ends with Exit::io
/// and an error that names `folder`.
class ScratchWatch {
 public:
  ScratchWatch(const fs::path& folder, const std::byte* begin, size_t bytes);
  ~ScratchWatch();
  ScratchWatch(const ScratchWatch&) = delete;
  ScratchWatch& operator=(const ScratchWatch&) = delete;

 private:
  int slot_;
};

/// A regular file that is mapped read-only. If another program truncates the file while it is
/// mapped, the process ends with Exit::data and an error that names the file. If 256 mappings and
/// ScratchWatch objects existed already when the file was mapped, SIGBUS ends the process without
/// an error message instead.
class MappedFile {
 public:
  MappedFile() = default;
  /// Maps a file. Throws FileError with `code` if the file can't be read or is not a regular file.
  MappedFile(const fs::path& path, Exit code);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Returns the path with which the file was opened.
  const fs::path& path() const { return path_; }
  /// Releases the memory of the complete pages in `part`. These pages are read from the file again
  /// when they are needed.
  void release(std::span<const std::byte> part) const;

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

/// Holds an exclusive lock on a folder (flock on a file in the folder) until destroyed. However the
/// process ends, the operating system releases the lock. The constructor throws Exit::busy if
/// another process holds the lock.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder, const std::string& file = "lock");
  ~FolderLock();
  /// Throws Exit::io if the folder that was locked has been removed, renamed or replaced.
  void check_in_place() const;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  fs::path folder_, file_;
  int fd_ = -1;
};

/// A function that is called at named points of the code, where tests may end the process (see
/// tests/support/faults/main.cc). In a normal process, the hook is null.
using FaultHook = void (*)(const char* point);
extern FaultHook fault_hook;
/// Calls fault_hook at a named point of the code. Does nothing in a normal process.
inline void fault_point(const char* point) {
  if (fault_hook != nullptr) [[unlikely]]
    fault_hook(point);
}

}  // namespace lathe
