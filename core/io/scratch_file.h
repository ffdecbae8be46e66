// A file without a name, for data of a process that does not fit into its memory, and the thread
// that transfers parts of it.
//
// The file never has a name (O_TMPFILE), or loses it as soon as it is open where the file system
// has no such files. The kernel therefore frees it however the process ends, kill -9 included. Its
// space is reserved when it is opened, so that a disk that is too small is found at the start of a
// run and not within a step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/io/file.h"

namespace lathe {

/// What transfers to and from scratch files took.
struct TransferTimes {
  int64_t bytes = 0;      ///< read and written
  double transfer_s = 0;  ///< of all threads
  double wait_s = 0;      ///< that the training thread waited for them

  /// Returns a sentence for the log.
  std::string text() const;
};

/// A file that begins as zeros. Its functions throw FileError with Exit::io, and may be called by
/// several threads for parts that do not overlap.
class ScratchFile {
 public:
  /// Opens a file of `bytes` bytes in nearest_folder(`folder`), and reserves its space where the
  /// file system can.
  ScratchFile(const fs::path& folder, uint64_t bytes);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Makes the file `bytes` bytes long, and reserves the space that it did not have.
  void grow(uint64_t bytes);
  /// Reads `bytes` bytes from `offset` on.
  void read(uint64_t offset, void* to, size_t bytes) const;
  /// Writes `bytes` bytes from `offset` on.
  void write(uint64_t offset, const void* from, size_t bytes) const;

  /// Maps `bytes` bytes from `offset` on to these addresses, which share them with the file. All
  /// three are multiples of a page.
  void map(std::byte* at, uint64_t offset, size_t bytes) const;
  /// Gives the space of a part back to the disk, which reads as zeros then. Does not throw.
  void discard(uint64_t offset, size_t bytes) const;
  /// Transfers complete pages past the system's cache of files (O_DIRECT) from now on, where the
  /// file system can do that: parts that begin and end on pages of 4096 bytes, from and to memory
  /// that begins on one. Other parts still pass through the cache.
  void bypass_cache();
  /// Returns the folder that the file is in.
  const fs::path& folder() const { return folder_; }

 private:
  template <class Call>
  void transfer(const char* name, uint64_t offset, char* memory, size_t bytes, Call&& call) const;
  [[noreturn]] void fails(const std::string& what) const;
  [[noreturn]] void fails_to_reserve(uint64_t bytes) const;

  fs::path folder_;
  int fd_ = -1;
  int direct_fd_ = -1;  // the same file past the cache; -1: none
  uint64_t size_ = 0;
};

/// A thread that calls functions one after another, in the order of add(). The functions must not
/// throw.
class WorkThread {
 public:
  /// Throws Exit::memory where the system refuses a thread.
  WorkThread();
  /// Waits for the function that is running, and drops those that have not begun.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  /// Has a function called after those that were added before.
  void add(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace lathe
