#include "core/mapped_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>

#include "core/dry_run.h"

namespace lathe {
namespace {

constexpr size_t page = 4096;
constexpr size_t reserved_address_bytes = size_t{1} << 42;  // 4 TiB of addresses, to which blocks
                                                            // are mapped

constexpr int without_memory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/// Reserves addresses that take no memory. Throws Exit::memory if the system has no such addresses.
std::byte* reserve_addresses(size_t bytes, int protection) {
  void* const addresses = mmap(nullptr, bytes, protection, without_memory, -1, 0);
  if (addresses == MAP_FAILED) {
    fail(Exit::memory, "cannot reserve ", bytes,
         " bytes of addresses for memory.offload: ", std::strerror(errno),
         "; raise the limit of virtual memory (ulimit -v)");
  }
  return static_cast<std::byte*>(addresses);
}

}  // namespace

/// The scratch file and the addresses to which it is mapped: offset o of the file is mapped to
/// begin + o.
struct MappedMemory::State {
  explicit State(const fs::path& folder) {
    if (is_dry_run()) return;
    file.emplace(folder, 0);
    begin = reserve_addresses(reserved_address_bytes, PROT_NONE);
    watch.emplace(file->folder(), begin, reserved_address_bytes);
  }
  ~State() {
    if (begin != nullptr) munmap(begin, reserved_address_bytes);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::optional<ScratchFile> file;  // none in a dry run
  std::byte* begin = nullptr;
  std::optional<ScratchWatch> watch;
  std::mutex mutex;
  uint64_t end = 0;  // offset in the file at which the next block begins
  std::atomic<int64_t> bytes{0};
};

/// The context of a DataPtr, which describes a block of memory.
struct MappedMemory::Block {
  std::shared_ptr<State> state;
  uint64_t offset;
  size_t bytes;  // size of the block, in complete pages
  std::byte* data = nullptr;
};

MappedMemory::MappedMemory(const fs::path& folder) : state_(std::make_shared<State>(folder)) {}

c10::DataPtr MappedMemory::allocate(size_t bytes) {
  State& s = *state_;
  auto block = std::make_unique<Block>(state_, 0, (bytes + page - 1) / page * page);
  const std::lock_guard lock(s.mutex);
  block->offset = s.end;
  if (s.file) {
    if (s.end + block->bytes > reserved_address_bytes)
      fail(Exit::memory, "memory.offload: the parameters take more than ", reserved_address_bytes,
           " bytes of addresses; make the model smaller");
    s.file->grow(s.end + block->bytes);
    block->data = s.begin + s.end;
    s.file->map(block->data, block->offset, block->bytes);
  } else {
    block->data = reserve_addresses(block->bytes, PROT_READ | PROT_WRITE);
  }
  s.end += block->bytes;
  s.bytes += static_cast<int64_t>(block->bytes);
  std::byte* const data = block->data;
  return {data, block.release(), &free, c10::DeviceType::CPU};
}

void MappedMemory::free(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  State& s = *block->state;
  s.bytes -= static_cast<int64_t>(block->bytes);
  if (!s.file) {
    munmap(block->data, block->bytes);
    return;
  }
  // Replace the mapping by one that permits no access, so that no other mapping gets these
  // addresses. If this fails, the old mapping stays.
  (void)mmap(block->data, block->bytes, PROT_NONE, without_memory | MAP_FIXED, -1, 0);
  s.file->discard(block->offset, block->bytes);
}

int64_t MappedMemory::bytes() const { return state_->bytes; }

bool MappedMemory::holds(const c10::DataPtr& data) { return data.get_deleter() == &free; }

void MappedMemory::prefetch(const c10::DataPtr& data) {
  const Block& block = *static_cast<const Block*>(data.get_context());
  if (block.state->file) madvise(block.data, block.bytes, MADV_WILLNEED);
}

void MappedMemory::release(const c10::DataPtr& data) {
  const Block& block = *static_cast<const Block*>(data.get_context());
  // madvise() does not drop the contents of a shared mapping. A changed page stays in the page
  // cache.
  if (block.state->file) madvise(block.data, block.bytes, MADV_DONTNEED);
}

}  // namespace lathe
