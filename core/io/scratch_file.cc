#include "core/io/scratch_file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/io/log.h"
#include "core/io/text.h"

namespace lathe {
namespace {

constexpr size_t page = 4096;  // transfers that bypass the page cache (O_DIRECT) begin and end at
                               // multiples of this

/// Opens an unnamed file in the folder. Returns the descriptor of the file, or -1 with errno set.
int open_unnamed(const fs::path& folder) {
  constexpr mode_t own = 0600;
  const int fd = retry_interrupted(
      [&] { return file_calls.open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, own); });
  const bool is_unknown = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL);
  if (!is_unknown) return fd;

  // Some file systems, such as NFS, do not support unnamed files. In that case, create a file and
  // remove its name as soon as it is open. A process on another machine may have the same process
  // ID and therefore use the same name, so several names are tried.
  int named = -1;
  for (int i = 0; i < 1000; ++i) {
    const fs::path path = folder / str(".lathe-scratch-", ::getpid(), "-", i);
    named = retry_interrupted(
        [&] { return file_calls.open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, own); });
    if (named >= 0) file_calls.unlink(path.c_str());
    if (named >= 0 || errno != EEXIST) break;
  }
  return named;
}

/// Extends a file from `begin` to `end` bytes, and reserves disk space for the new bytes if the
/// file system can do that. Returns whether this succeeded.
bool reserve(int fd, uint64_t begin, uint64_t end) {
  const auto first = static_cast<off_t>(begin), last = static_cast<off_t>(end);
  if (retry_interrupted([&] { return file_calls.fallocate(fd, 0, first, last - first); }) == 0)
    return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  return retry_interrupted([&] { return file_calls.ftruncate(fd, last); }) == 0;
}

}  // namespace

std::string TransferTimes::text() const {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  return format(
      "%.2f GB read and written in %.2f s (%.2f GB/s); training waited for %.2f s, and "
      "%.0f%% of the transfer time was hidden",
      gigabytes, transfer_s, gigabytes / transfer_s, wait_s,
      100 * std::max(0.0, 1 - wait_s / transfer_s));
}

ScratchFile::ScratchFile(const fs::path& folder, uint64_t bytes) : folder_(nearest_folder(folder)) {
  fd_ = open_unnamed(folder_);
  if (fd_ < 0) fails("cannot open a scratch file");
  struct statfs system{};
  if (fstatfs(fd_, &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    log_warn(folder_.string(),
             " is a folder in memory, so a scratch file there frees no memory; set "
             "memory.offload_dir to a folder on a disk");
  }
  if (bytes == 0 || reserve(fd_, 0, bytes)) {
    size_ = bytes;
    return;
  }

  // The destructor does not run if the constructor throws, so close the file here. Closing it must
  // not change the errno that is reported.
  const int number = errno;
  file_calls.close(std::exchange(fd_, -1));
  errno = number;
  fails_to_reserve(bytes);
}

void ScratchFile::grow(uint64_t bytes) {
  if (bytes <= size_) return;
  if (!reserve(fd_, size_, bytes)) fails_to_reserve(bytes);
  size_ = bytes;
}

void ScratchFile::map(std::byte* at, uint64_t offset, size_t bytes) const {
  void* const data = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
                          static_cast<off_t>(offset));
  if (data == MAP_FAILED) fails(str("cannot map ", bytes, " bytes of a scratch file"));
}

void ScratchFile::discard(uint64_t offset, size_t bytes) const {
  // If the file system doesn't support freeing a part, the space is freed when the file is closed.
  file_calls.fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(bytes));
}

void ScratchFile::fails_to_reserve(uint64_t bytes) const {
  const int number = errno;
  std::error_code unknown;
  const fs::space_info space = fs::space(folder_, unknown);
  errno = number;
  fails(str("cannot reserve ", bytes, " bytes for a scratch file",
            unknown ? "" : str(" (", space.available, " are free)")));
}

ScratchFile::~ScratchFile() {
  if (direct_fd_ >= 0) file_calls.close(direct_fd_);
  if (fd_ >= 0) file_calls.close(fd_);
}

void ScratchFile::bypass_cache() {
  if (direct_fd_ >= 0) return;
  // The file has no name, so it is opened again through /proc. If the file system refuses O_DIRECT,
  // transfers use the page cache.
  const std::string path = str("/proc/self/fd/", fd_);
  direct_fd_ = retry_interrupted(
      [&] { return file_calls.open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC, 0); });
}

void ScratchFile::fails(const std::string& what) const {
  const int number = errno;
  throw FileError(Exit::io, str(what, " in ", folder_.string(), ": ", std::strerror(number)),
                  number);
}

/// Calls call(descriptor, memory, bytes, offset), which reads or writes some of the bytes, until
/// all bytes are transferred.
template <class Call>
void ScratchFile::transfer(const char* name, uint64_t offset, char* memory, size_t bytes,
                           Call&& call) const {
  bool is_refused = false;  // whether O_DIRECT is refused, for example by a disk with larger blocks
  while (bytes > 0) {
    const bool is_aligned = (offset | reinterpret_cast<uintptr_t>(memory) | bytes) % page == 0;
    const bool is_direct = direct_fd_ >= 0 && is_aligned && !is_refused;
    const ssize_t n = retry_interrupted([&] {
      return call(is_direct ? direct_fd_ : fd_, memory, bytes, static_cast<off_t>(offset));
    });
    if (n < 0 && errno == EINVAL && is_direct) {
      is_refused = true;
      continue;
    }

    if (n == 0) errno = EIO;  // the file is long enough, so its end can't be here
    if (n <= 0) fails(str("cannot ", name, " the scratch file"));
    memory += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void ScratchFile::read(uint64_t offset, void* to, size_t bytes) const {
  transfer("read", offset, static_cast<char*>(to), bytes, file_calls.pread);
}

void ScratchFile::write(uint64_t offset, const void* from, size_t bytes) const {
  transfer("write", offset, const_cast<char*>(static_cast<const char*>(from)), bytes,
           file_calls.pwrite);
}

WorkThread::WorkThread() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    fail(Exit::memory, "cannot start a thread for the scratch file: ", e.code().message(),
         "; raise the limit of processes and threads (ulimit -u)");
  }
}

WorkThread::~WorkThread() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WorkThread::add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void WorkThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace lathe
