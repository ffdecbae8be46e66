#include "core/io/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

namespace lathe {

FaultHook fault_hook = nullptr;

namespace {

[[noreturn]] void io_error(std::string_view doing, const fs::path& path, Exit code = Exit::io) {
  fail(code, "cannot ", doing, " ", path.string(), ": ", std::strerror(errno));
}

/// Maps in use, for the SIGBUS handler: plain arrays that it may read at any moment.
struct MapSlot {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<size_t> size{0};
  std::array<char, 512> path{};
};
std::array<MapSlot, 256> map_slots;
std::mutex map_mutex;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(static_cast<int>(Exit::io));
}

void on_bus_error(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (auto& slot : map_slots) {
    const std::byte* begin = slot.begin;
    if (begin != nullptr && at >= begin && at < begin + slot.size) {
      say("error: ");
      say(slot.path.data());
      say(" was cut short while it was being read; restore the file and run the same command again\n");
      _exit(static_cast<int>(Exit::data));
    }
  }
  signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

int claim_slot(const fs::path& path, const std::byte* data, size_t size) {
  std::lock_guard lock(map_mutex);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  (void)installed;
  for (size_t i = 0; i < map_slots.size(); ++i) {
    auto& slot = map_slots[i];
    if (slot.begin != nullptr) continue;
    std::strncpy(slot.path.data(), path.c_str(), slot.path.size() - 1);
    slot.size = size;
    slot.begin = data;
    return static_cast<int>(i);
  }
  return -1;  // more maps than slots: a cut file then ends the process with the plain signal
}

}  // namespace

OutputFile::OutputFile(const fs::path& path, Open how) : path_(path) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (how == Open::create ? O_TRUNC : O_APPEND);
  fd_ = ::open(path.c_str(), flags, 0644);
  if (fd_ < 0) io_error("write", path);
}
OutputFile::OutputFile(OutputFile&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}
OutputFile& OutputFile::operator=(OutputFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}
OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("write", path_);
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::sync() {
  if (::fsync(fd_) != 0) io_error("sync", path_);
}

uint64_t OutputFile::size() const {
  struct stat s {};
  if (::fstat(fd_, &s) != 0) io_error("read the size of", path_);
  return static_cast<uint64_t>(s.st_size);
}

void sync_folder(const fs::path& folder) {
  const fs::path path = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) io_error("open", path);
  const int status = ::fsync(fd);
  ::close(fd);
  if (status != 0) io_error("sync", path);
}

void write_file_durably(const fs::path& path, std::string_view text) {
  const fs::path temporary = path.string() + ".tmp";
  {
    OutputFile file(temporary, OutputFile::Open::create);
    file.write(text);
    file.sync();
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) io_error("rename to", path);
  sync_folder(path.parent_path());
}

std::string read_file(const fs::path& path, Exit code, uint64_t limit) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) io_error("read", path, code);
  std::string text;
  struct stat s {};
  if (::fstat(fd, &s) == 0 && !S_ISREG(s.st_mode)) {
    ::close(fd);
    fail(code, path.string(), " is not a regular file");
  }
  if (static_cast<uint64_t>(s.st_size) > limit) {
    ::close(fd);
    fail(code, path.string(), " has ", s.st_size, " bytes; at most ", limit, " are read");
  }
  text.resize(static_cast<size_t>(s.st_size));
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = ::read(fd, text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      ::close(fd);
      io_error("read", path, code);
    }
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  ::close(fd);
  text.resize(got);
  return text;
}

bool make_folders(const fs::path& folder) {
  std::error_code error;
  const bool made = fs::create_directories(folder, error);
  if (error) fail(Exit::io, "cannot create the folder ", folder.string(), ": ", error.message());
  return made;
}

MappedFile::MappedFile(const fs::path& path, Exit code) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) io_error("read", path, code);
  struct stat s {};
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
    ::close(fd);
    fail(code, path.string(), " is not a regular file");
  }
  size_ = static_cast<size_t>(s.st_size);
  if (size_ > 0) {
    void* map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      ::close(fd);
      io_error("map", path, code);
    }
    data_ = static_cast<const std::byte*>(map);
    slot_ = claim_slot(path, data_, size_);
  }
  ::close(fd);
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
  if (slot_ >= 0) map_slots[static_cast<size_t>(slot_)].begin = nullptr;
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

FolderLock::FolderLock(const fs::path& folder) : folder_(folder) {
  const fs::path path = folder / "lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) io_error("open", path);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd_);
    if (error != EWOULDBLOCK) {
      errno = error;
      io_error("lock", path);
    }
    fail(Exit::busy, "the run folder ", folder.string(),
         " is in use by another lathe process; wait for it, stop it, or give another --train.out_dir");
  }
}
void FolderLock::check_in_place() const {
  struct stat held {
  }, there{};
  const bool same = ::fstat(fd_, &held) == 0 && ::stat((folder_ / "lock").c_str(), &there) == 0 &&
                    held.st_ino == there.st_ino && held.st_dev == there.st_dev;
  if (!same) {
    fail(Exit::io, "the folder ", folder_.string(),
         " was removed or replaced while it was in use; what was written there since is lost");
  }
}
FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lathe
