// Declares ScratchFile, an unnamed file for data that does not fit into the memory of a process,
// and WorkThread, a thread for the transfers to and from such a file.
//
// The file has no name (O_TMPFILE). If the file system does not support unnamed files, the name is
// removed as soon as the file is open. The operating system therefore frees the file however the
// process ends, even after kill -9. Disk space is reserved when the file is opened or grown, so
// that a full disk is an error at that moment and not during a later write. The space for the
// optimizer's state is reserved at the start of a run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/io/file.h"

namespace lathe {

/// Statistics of the transfers to and from scratch files.
struct TransferTimes {
  int64_t bytes = 0;      ///< number of bytes that were read or written
  double transfer_s = 0;  ///< time of all transfers in seconds, summed over the threads that make
                          ///< them
  double wait_s = 0;      ///< time for which the training thread waited for transfers, in seconds

  /// Returns a sentence with these statistics for the log.
  std::string text() const;
};

/// A scratch file, whose bytes are initially zero. Member functions that fail throw FileError with
/// Exit::io. Several threads may call the functions at the same time for parts that do not overlap.
class ScratchFile {
 public:
  /// Opens a file of `bytes` bytes in nearest_folder(`folder`), and reserves disk space for the
  /// file if the file system supports that.
  ScratchFile(const fs::path& folder, uint64_t bytes);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Extends the file to `bytes` bytes and reserves the additional space. Does nothing if the file
  /// already has at least that length.
  void grow(uint64_t bytes);
  /// Reads `bytes` bytes at `offset`.
  void read(uint64_t offset, void* to, size_t bytes) const;
  /// Writes `bytes` bytes at `offset`.
  void write(uint64_t offset, const void* from, size_t bytes) const;

  /// Maps `bytes` bytes of the file, from `offset`, to the address `at` as shared memory. All three
  /// arguments must be multiples of the page size.
  void map(std::byte* at, uint64_t offset, size_t bytes) const;
  /// Frees the disk space of a part of the file. The bytes of the part then read as zeros. If the
  /// file system does not support this, does nothing. Does not throw.
  void discard(uint64_t offset, size_t bytes) const;
  /// Makes later transfers bypass the page cache (O_DIRECT) if the file system supports that. A
  /// transfer bypasses the cache if the part of the file begins and ends at multiples of 4096
  /// bytes, and the memory begins at such a multiple. Other transfers still use the page cache.
  void bypass_cache();
  /// Returns the folder that contains the file.
  const fs::path& folder() const { return folder_; }

 private:
  template <class Call>
  void transfer(const char* name, uint64_t offset, char* memory, size_t bytes, Call&& call) const;
  [[noreturn]] void fails(const std::string& what) const;
  [[noreturn]] void fails_to_reserve(uint64_t bytes) const;

  fs::path folder_;
  int fd_ = -1;
  int direct_fd_ = -1;  // a second descriptor of the file, opened with O_DIRECT; -1 if the file was
                        // not opened this way
  uint64_t size_ = 0;
};

/// A thread that calls functions one after another, in the order in which add() was called. The
/// functions must not throw.
class WorkThread {
 public:
  /// Starts the thread. Throws Exit::memory if the system can't start it.
  WorkThread();
  /// Waits for the function that is running, and drops the functions that have not started.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  /// Adds a function, which is called after all functions that were added earlier.
  void add(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  std::thread thread_;  // the last member, since the thread uses the other members
};

}  // namespace lathe
