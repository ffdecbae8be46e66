#include "core/io/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/io/text.h"

namespace lathe {

FaultHook fault_hook = nullptr;
FileCalls file_calls{
    .open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
    .write = ::write,
    .fsync = ::fsync,
    .close = ::close,
    .ftruncate = ::ftruncate,
    .flock = ::flock,
    .rename = ::rename,
    .mkdir = ::mkdir,
    .unlink = ::unlink,
    .rmdir = ::rmdir,
    .pread = ::pread,
    .pwrite = ::pwrite,
    .fallocate = ::fallocate,
};

namespace {

[[noreturn]] void io_error(std::string_view doing, const fs::path& path, Exit code = Exit::io) {
  const int number = errno;
  throw FileError(code, str("cannot ", doing, " ", path.string(), ": ", std::strerror(number)),
                  number);
}

[[noreturn]] void not_regular(const fs::path& path, Exit code) {
  throw FileError(code, str(path.string(), " is not a regular file"), 0);
}

/// Closes a descriptor and returns whether that succeeded. The descriptor is closed even if a
/// signal interrupts the call, so the call is not repeated.
bool closes(int fd) { return file_calls.close(fd) == 0 || errno == EINTR; }

/// A descriptor of a regular file, and the size of the file. Opening never blocks: it fails for a
/// pipe, even for one that nothing writes to.
struct Readable {
  int fd = -1;
  size_t size = 0;

  Readable(const fs::path& path, Exit code) {
    fd = retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd < 0 && errno == ENXIO) not_regular(path, code);  // a socket, or a missing device
    if (fd < 0) io_error("read", path, code);
    struct stat s{};
    if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
      ::close(fd);
      not_regular(path, code);
    }
    size = static_cast<size_t>(s.st_size);
  }
  ~Readable() { ::close(fd); }

  /// Reads the next `bytes` bytes, or fewer at the end of the file. Returns the number of bytes
  /// read.
  size_t read(const fs::path& path, Exit code, void* to, size_t bytes) const {
    size_t got = 0;
    while (got < bytes) {
      const ssize_t n =
          retry_interrupted([&] { return ::read(fd, static_cast<char*>(to) + got, bytes - got); });
      if (n < 0) io_error("read", path, code);
      if (n == 0) break;
      got += static_cast<size_t>(n);
    }
    return got;
  }

  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;
};

/// Opens a regular file for writing without blocking. Throws FileError if that fails. If `shown` is
/// not empty, an error that the system reports names `shown` instead of `path`.
int open_to_write(const fs::path& path, int flags, const fs::path& shown = {}) {
  const int fd = retry_interrupted(
      [&] { return file_calls.open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode_t{0644}); });
  const auto refuse = [&] {
    throw FileError(
        Exit::io,
        str(path.string(), " is not a regular file; remove it and run the same command again"), 0);
  };
  if (fd < 0 && errno == ENXIO) refuse();  // a pipe without a reader, or a socket
  if (fd < 0) io_error("write", shown.empty() ? path : shown);
  struct stat s{};
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
    closes(fd);
    refuse();
  }
  return fd;
}

std::string advice(int number) {
  if (number == ENOSPC || number == EDQUOT) return "; free space and run the same command again";
  if (number == EACCES || number == EPERM) return "; change the permissions, or give another path";
  if (number == EFBIG) {
    // The file exceeds either the process's limit or the largest size on the file system.
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
      return "; use another file system";
    return str("; the size of files is limited to ", limit.rlim_cur,
               " bytes (ulimit -f): raise the limit and run the same command again");
  }
  return number == EIO ? "; check the disk and run the same command again" : "";
}

/// Describes a mapping that is in use. Its members are atomic values and plain arrays, which the
/// SIGBUS handler can read at any moment.
struct MapSlot {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<size_t> size{0};
  std::atomic<bool> is_scratch{false};  // true: the mapping is of a scratch file in the folder
                                        // `path`; false: of the file `path`
  std::array<char, 512> path{};
};
std::array<MapSlot, 256> map_slots;
std::mutex map_mutex;

void on_bus_error(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (auto& slot : map_slots) {
    const std::byte* begin = slot.begin;
    if (begin != nullptr && at >= begin && at < begin + slot.size) {
      // Use one write, so that the line stays together if several processes share the stream.
      const auto part = [](const char* text) {
        return iovec{.iov_base = const_cast<char*>(text), .iov_len = std::strlen(text)};
      };

      const bool is_scratch = slot.is_scratch;
      const std::array parts{
          part(is_scratch ? "error: a page of the scratch file can't be read or written in "
                          : "error: "),
          part(slot.path.data()),
          part(is_scratch ? "; check the disk and run the same command again\n"
                          : " was cut short while it was being read; restore the file and run the "
                            "same command again\n")};

      if (writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size())) < 0)
        _exit(static_cast<int>(Exit::io));
      _exit(static_cast<int>(is_scratch ? Exit::io : Exit::data));
    }
  }

  // The address is not in a registered mapping. End the process as if this handler were not
  // installed.
  signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

/// Registers a mapping for the SIGBUS handler, and installs the handler on first use. Returns the
/// slot, or -1 if all slots are in use.
int register_mapping(const fs::path& path, const std::byte* data, size_t size,
                     bool is_scratch = false) {
  std::lock_guard lock(map_mutex);
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  (void)installed;
  for (size_t i = 0; i < map_slots.size(); ++i) {
    auto& slot = map_slots[i];
    if (slot.begin != nullptr) continue;
    std::strncpy(slot.path.data(), printable(path.string()).c_str(), slot.path.size() - 1);
    slot.is_scratch = is_scratch;
    slot.size = size;
    slot.begin = data;
    return static_cast<int>(i);
  }
  return -1;  // if this file is truncated, SIGBUS ends the process without a message
}

void free_slot(int slot) {
  if (slot >= 0) map_slots[static_cast<size_t>(slot)].begin = nullptr;
}

}  // namespace

ScratchWatch::ScratchWatch(const fs::path& folder, const std::byte* begin, size_t bytes)
    : slot_(register_mapping(folder, begin, bytes, /*is_scratch=*/true)) {}
ScratchWatch::~ScratchWatch() { free_slot(slot_); }

FileError::FileError(Exit code, const std::string& cause, int number)
    : Error(code, cause + advice(number)), cause_(cause), number_(number) {}
bool FileError::is_full() const { return number_ == ENOSPC || number_ == EDQUOT; }

OutputFile::OutputFile(const fs::path& path, Open how, const fs::path& shown)
    : path_(shown.empty() ? path : shown),
      fd_(open_to_write(path, O_WRONLY | O_CREAT | (how == Open::create ? O_TRUNC : O_APPEND),
                        shown)) {}
OutputFile::OutputFile(OutputFile&& o) noexcept
    : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}
OutputFile& OutputFile::operator=(OutputFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}
OutputFile::~OutputFile() {
  if (fd_ >= 0) file_calls.close(fd_);
}

void OutputFile::bypass_cache(bool on) {
  const int flags = fcntl(fd_, F_GETFL);
  if (flags < 0 || on == ((flags & O_DIRECT) != 0)) return;
  fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = retry_interrupted([&] { return file_calls.write(fd_, at, bytes); });
    // O_DIRECT refuses a write that does not consist of complete pages. A short write leaves such a
    // remainder.
    if (n < 0 && errno == EINVAL && (fcntl(fd_, F_GETFL) & O_DIRECT) != 0) {
      bypass_cache(false);
      continue;
    }
    if (n == 0) errno = EIO;
    if (n <= 0) io_error("write", path_);
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::sync() {
  if (retry_interrupted([&] { return file_calls.fsync(fd_); }) != 0) io_error("sync", path_);
}

void OutputFile::close() {
  if (!closes(std::exchange(fd_, -1))) io_error("close", path_);
}

uint64_t OutputFile::size() const {
  struct stat s{};
  if (::fstat(fd_, &s) != 0) io_error("read the size of", path_);
  return static_cast<uint64_t>(s.st_size);
}

void LargeWrites::add(const void* data, size_t bytes) {
  constexpr size_t size = 8 << 20, page = 4096;
  if (!part_) part_.reset(static_cast<std::byte*>(std::aligned_alloc(page, size)));
  if (!part_) throw std::bad_alloc();

  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const size_t n = std::min(bytes, size - used_);
    std::memcpy(part_.get() + used_, at, n);
    used_ += n;
    at += n;
    bytes -= n;
    if (used_ < size) continue;
    file_.bypass_cache(true);
    write();
  }
}

void LargeWrites::finish() {
  file_.bypass_cache(false);
  write();
}

void LargeWrites::write() {
  file_.write(part_.get(), used_);
  used_ = 0;
}

void sync_folder(const fs::path& folder) {
  const fs::path path = folder.empty() ? fs::path(".") : folder;
  const int fd = retry_interrupted(
      [&] { return file_calls.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, mode_t{0}); });
  if (fd < 0) io_error("open", path);
  const bool synced = retry_interrupted([&] { return file_calls.fsync(fd); }) == 0;
  const int number = errno;
  const bool closed = closes(fd);
  if (!synced) errno = number;
  if (!synced || !closed) io_error("sync", path);
}

void write_file_durably(const fs::path& path, std::string_view text) {
  const fs::path temporary = path.string() + ".tmp";
  try {
    OutputFile file(temporary, OutputFile::Open::create, path);
    file.write(text);
    file.sync();
    file.close();
    rename_file(temporary, path);
  } catch (...) {
    file_calls.unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

std::string read_file(const fs::path& path, Exit code, uint64_t limit) {
  const Readable file(path, code);
  if (file.size > limit)
    fail(code, path.string(), " has ", file.size, " bytes, more than the limit of ", limit,
         " bytes for this kind of file");
  std::string text(file.size, '\0');
  text.resize(file.read(path, code, text.data(), text.size()));
  return text;
}

void read_in_parts(const fs::path& path, Exit code, size_t part,
                   const std::function<void(std::span<const std::byte>)>& use) {
  const Readable file(path, code);
  ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> memory(std::min(part, file.size));
  for (size_t left = file.size; left > 0;) {
    const size_t n = file.read(path, code, memory.data(), std::min(memory.size(), left));
    if (n == 0) return;
    use({memory.data(), n});
    left -= n;
  }
}

bool make_folders(const fs::path& folder_) {
  const fs::path folder = folder_.has_filename() ? folder_ : folder_.parent_path();
  std::error_code error;
  if (fs::is_directory(folder, error)) return false;
  const auto make = [&] { return file_calls.mkdir(folder.c_str(), mode_t{0777}); };
  int status = retry_interrupted(make);
  if (status != 0 && errno == ENOENT && folder.has_parent_path()) {
    make_folders(folder.parent_path());
    status = retry_interrupted(make);
  }
  if (status != 0 && errno == EEXIST && fs::is_directory(folder, error))
    return false;  // another process was faster
  if (status != 0) io_error("create the folder", folder);
  sync_folder(folder.parent_path());
  return true;
}

std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    found.push_back(entries->path());
  if (error && error != std::errc::no_such_file_or_directory) {
    errno = error.value();
    io_error("read", folder);
  }
  return found;
}

std::string lower_extension(const fs::path& path) { return lowercase(path.extension().string()); }

fs::path nearest_folder(const fs::path& folder) {
  fs::path nearest = fs::absolute(folder);
  std::error_code error;
  while (!fs::is_directory(nearest, error) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  return nearest;
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (retry_interrupted([&] { return file_calls.rename(from.c_str(), to.c_str()); }) != 0)
    io_error(str("rename ", from.string(), " to"), to);
}

void truncate_file(const fs::path& path, uint64_t length) {
  const int fd = open_to_write(path, O_WRONLY);
  const bool cut = retry_interrupted(
                       [&] { return file_calls.ftruncate(fd, static_cast<off_t>(length)); }) == 0 &&
                   retry_interrupted([&] { return file_calls.fsync(fd); }) == 0;
  const int number = errno;
  const bool closed = closes(fd);
  if (!cut) errno = number;
  if (!cut || !closed) io_error("truncate", path);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  const bool folder = fs::symlink_status(path, error).type() == fs::file_type::directory;
  if (folder) {
    for (const auto& inside : list_folder(path)) remove_tree(inside);
  }
  const auto remove = folder ? file_calls.rmdir : file_calls.unlink;
  if (retry_interrupted([&] { return remove(path.c_str()); }) != 0 && errno != ENOENT)
    io_error("remove", path);
}

MappedFile::MappedFile(const fs::path& path, Exit code) : path_(path) {
  const Readable file(path, code);
  if (file.size == 0) return;
  void* map = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (map == MAP_FAILED) io_error("map", path, code);
  data_ = static_cast<const std::byte*>(map);
  size_ = file.size;
  slot_ = register_mapping(path, data_, size_);
}
MappedFile::MappedFile(MappedFile&& o) noexcept { *this = std::move(o); }
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(slot_, o.slot_);
  return *this;
}
MappedFile::~MappedFile() {
  free_slot(slot_);
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = (address + page - 1) / page * page,
                  end = (address + part.size()) / page * page;
  if (begin < end)
    ::madvise(const_cast<std::byte*>(part.data()) + (begin - address), end - begin, MADV_DONTNEED);
}

FolderLock::FolderLock(const fs::path& folder, const std::string& file)
    : folder_(folder), file_(folder / file) {
  fd_ = open_to_write(file_, O_RDWR | O_CREAT);
  if (retry_interrupted([&] { return file_calls.flock(fd_, LOCK_EX | LOCK_NB); }) != 0) {
    const int error = errno;
    closes(fd_);
    if (error != EWOULDBLOCK) {
      errno = error;
      io_error("lock", file_);
    }
    fail(Exit::busy, "the run folder ", folder.string(),
         " is in use by another lathe process; wait for it, stop it, or give another "
         "--train.out_dir");
  }
}
void FolderLock::check_in_place() const {
  struct stat held{}, there{};
  const bool same = ::fstat(fd_, &held) == 0 && ::stat(file_.c_str(), &there) == 0 &&
                    held.st_ino == there.st_ino && held.st_dev == there.st_dev;
  if (!same) {
    fail(Exit::io, "the folder ", folder_.string(),
         " was removed or replaced while it was in use; what was written there since is lost");
  }
}
FolderLock::~FolderLock() {
  if (fd_ >= 0) file_calls.close(fd_);
}

}  // namespace lathe
