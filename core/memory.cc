// Implements the allocator of memory.h. Blocks up to 4 KB come from the C library, and larger
// blocks from segments. A training step in steady state requests no memory from the system (tested
// over steps 3 to 103). When no free block is large enough, completely free segments are returned
// to the system before another segment is allocated. Reserved memory therefore stays within 1.3
// times the peak of memory in use, even with changing shapes (tests/core/allocator_test.cc).
#include "core/memory.h"

#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"

#ifdef LATHE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace lathe {
namespace {

constexpr size_t header_bytes = 64;  // a multiple of 64, so that the data after the header are
                                     // 64-byte aligned
constexpr size_t huge = size_t{2} << 20;
constexpr size_t small_page = 4096;
// Blocks up to this size, including the header, come from the C library, and are cached by size.
constexpr size_t small = 4096;
constexpr size_t min_remainder = 1024;  // the smallest remainder of a block that is split off as a
                                        // separate block

// The address sanitizer does not know the blocks that are cut from a segment or kept for the next
// tensor. Blocks are therefore marked for the sanitizer: only the bytes that a tensor requested may
// be accessed, and each block ends with bytes that may never be accessed.
#ifdef LATHE_ASAN
constexpr size_t guard_bytes = 64;
void close_memory(const void* p, size_t n) { ASAN_POISON_MEMORY_REGION(p, n); }
void open_memory(const void* p, size_t n) { ASAN_UNPOISON_MEMORY_REGION(p, n); }
#else
constexpr size_t guard_bytes = 0;
void close_memory(const void*, size_t) {}
void open_memory(const void*, size_t) {}
#endif

class CachingAllocator;

/// The header in front of each block's data. Blocks larger than 4 KB are cut from segments. A
/// segment is memory from the system that begins at a huge page. The blocks of a segment form a
/// list in the order of their addresses.
struct Header {
  size_t block = 0;  // bytes of the block, including the header
  size_t used = 0;   // bytes that the tensor requested, which are counted in the category
  Header *before = nullptr, *after = nullptr;
  Header* segment = nullptr;              // the first block of this block's segment
  CachingAllocator* allocator = nullptr;  // the allocator to which the block returns when it is
                                          // freed
  Memory category = Memory::other;
  bool small = false;
  bool free = false;
};
static_assert(sizeof(Header) <= header_bytes);

thread_local Memory current = Memory::other;

size_t round_to(size_t n, size_t step) { return (n + step - 1) / step * step; }

/// Returns the size class of a small block with its header. Size classes are multiples of 64 up to
/// 512; above 512, there are eight classes for each power of two.
size_t small_size(size_t bytes) {
  return round_to(bytes, bytes <= 512 ? 64 : std::bit_floor(bytes - 1) / 8);
}

/// Returns memory that consists of complete huge pages; null if the system has no memory. If
/// `phantom` is true, the memory is only reserved, and the system commits a small page at the first
/// write to the page.
void* from_system(size_t bytes, bool phantom) {
  // Map one more huge page than needed, then unmap both ends, so that the segment begins at a huge
  // page.
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (phantom ? MAP_NORESERVE : 0);
  void* map = mmap(nullptr, bytes + huge, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(map);
  char* const aligned = start + (huge - reinterpret_cast<uintptr_t>(start) % huge) % huge;
  if (aligned != start) munmap(start, static_cast<size_t>(aligned - start));
  munmap(aligned + bytes, huge - static_cast<size_t>(aligned - start));
  madvise(aligned, bytes, phantom ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return aligned;
}

/// Sets memory of a phantom allocator to 0 and returns complete pages to the system.
void erase(char* begin, size_t bytes) {
  const size_t lead = (small_page - reinterpret_cast<uintptr_t>(begin) % small_page) % small_page;
  const size_t first = std::min(lead, bytes);
  const size_t pages = (bytes - first) / small_page * small_page;
  std::memset(begin, 0, first);
  if (pages > 0) madvise(begin + first, pages, MADV_DONTNEED);
  std::memset(begin + first + pages, 0, bytes - first - pages);
}

/// Orders free blocks by size, then by address. In this order, the first block that is large enough
/// is the best fit.
struct BySize {
  using is_transparent = void;  // allows searches for the first block of at least a given size
  bool operator()(const Header* a, const Header* b) const {
    return a->block != b->block ? a->block < b->block : std::less<>()(a, b);
  }
  bool operator()(const Header* a, size_t bytes) const { return a->block < bytes; }
  bool operator()(size_t bytes, const Header* a) const { return bytes < a->block; }
};

class CachingAllocator final : public c10::Allocator {
 public:
  explicit CachingAllocator(bool phantom) : phantom_(phantom) {}
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::DeviceType::CPU};
    if (c10::DataPtr other = UseMemorySource::allocate(current, n)) return other;
    const size_t bytes = n + header_bytes + guard_bytes;
    std::lock_guard lock(mutex_);
    Header* header = bytes <= small ? take_small(small_size(bytes)) : take(round_to(bytes, 64));
    if (header == nullptr) {
      fail(Exit::memory, "out of memory: ", n, " bytes were requested with ", stats_.total,
           " in use; make batch_size, block_size or the model smaller");
    }
    header->used = n;
    header->category = current;
    add(header->category, static_cast<int64_t>(n));
    void* data = reinterpret_cast<char*>(header) + header_bytes;
    if (is_marked(*header)) {
      close_memory(data, header->block - header_bytes);
      open_memory(data, n);
    }
    // In a dry run, memory must read as 0, but memory from the C library may have other contents.
    if (phantom_ && header->small) std::memset(data, 0, n);
    return {data, data, &release, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override {
    default_copy_data(to, from, n);
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  /// Returns completely free segments to the system.
  void trim() {
    std::lock_guard lock(mutex_);
    release_free_segments();
  }

  /// Counts memory that does not come from this allocator. `bytes` is negative when such memory is
  /// freed.
  void count_other(Memory category, int64_t bytes) {
    std::lock_guard lock(mutex_);
    count(bytes, /*blocks=*/0);
    add(category, bytes);
    touch(bytes);
  }

  void reset_peaks() {
    std::lock_guard lock(mutex_);
    stats_.peak = stats_.used;
    stats_.total_peak = stats_.total;
    stats_.touched_peak = stats_.touched;
  }

  static void recategorize(const c10::DataPtr& data, Memory category) {
    if (data.get() == nullptr || data.get_deleter() != &release) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data.get_context()) - header_bytes);
    CachingAllocator& self = *header->allocator;
    std::lock_guard lock(self.mutex_);
    self.add(header->category, -static_cast<int64_t>(header->used));
    header->category = category;
    self.add(category, static_cast<int64_t>(header->used));
  }

  static Memory category_of(const c10::DataPtr& data) {
    if (data.get() == nullptr || data.get_deleter() != &release) return Memory::other;
    const char* const block = static_cast<const char*>(data.get_context());
    auto* header = reinterpret_cast<const Header*>(block - header_bytes);
    std::lock_guard lock(header->allocator->mutex_);
    return header->category;
  }

  // Returns the normal allocator. It is never destroyed, since tensors with static storage may be
  // freed at the very end.
  static CachingAllocator& real() {
    static auto* allocator = new CachingAllocator(/*phantom=*/false);
    return *allocator;
  }
  /// Returns the allocator in use.
  static CachingAllocator& instance() { return *(in_use != nullptr ? in_use : &real()); }
  static inline CachingAllocator* in_use = nullptr;

 private:
  /// Returns whether a block is marked for the address sanitizer. Blocks in the segments of a
  /// phantom allocator are not marked, since their shadow bytes would take real memory.
  bool is_marked(const Header& block) const { return block.small || !phantom_; }

  static void release(void* data) {
    if (data == nullptr) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - header_bytes);
    CachingAllocator& self = *header->allocator;
    std::lock_guard lock(self.mutex_);
    self.add(header->category, -static_cast<int64_t>(header->used));
    if (self.is_marked(*header)) close_memory(data, header->block - header_bytes);
    if (header->small) {
      self.free_small_[header->block].push_back(header);
    } else {
      // An op that a dry run executes may have written to the block, and the next tensor must read
      // 0.
      if (self.phantom_) erase(static_cast<char*>(data), header->block - header_bytes);
      self.put_back(header);
    }
  }

  Header* take_small(size_t bytes) {
    auto& list = free_small_[bytes];
    if (!list.empty()) {
      Header* header = list.back();
      list.pop_back();
      return header;
    }
    void* block = std::aligned_alloc(64, bytes);
    if (block == nullptr) return nullptr;
    count(static_cast<int64_t>(bytes), 1);
    touch(static_cast<int64_t>(bytes));
    return new (block) Header{.block = bytes, .allocator = this, .small = true};
  }

  Header* take(size_t bytes) {
    auto found = free_.lower_bound(bytes);
    if (found == free_.end()) {
      // All free blocks are too small. Return unused segments before requesting another segment, so
      // that reserved memory stays near the required size.
      release_free_segments();
      if (!grow(bytes)) return nullptr;
      found = free_.lower_bound(bytes);
    }

    Header* header = *found;
    free_.erase(found);
    header->free = false;

    // Split off the remainder of the block, unless it is too small to be useful.
    if (header->block >= bytes + min_remainder) {
      char* const behind = reinterpret_cast<char*>(header) + bytes;
      open_memory(behind, header_bytes);
      auto* rest = new (behind) Header{.block = header->block - bytes,
                                       .before = header,
                                       .after = header->after,
                                       .segment = header->segment,
                                       .allocator = this};
      if (rest->after != nullptr) rest->after->before = rest;
      header->after = rest;
      header->block = bytes;
      rest->free = true;
      free_.insert(rest);
    }

    // Raise `touched` to the end of this block within the segment, rounded up to a page. All memory
    // below this position may be resident.
    Segment& segment = segments_.at(header->segment);
    const auto end = static_cast<size_t>(reinterpret_cast<char*>(header) -
                                         reinterpret_cast<char*>(header->segment)) +
                     header->block;
    const size_t touched = round_to(end, end > segment.huge_bytes ? small_page : huge);
    if (touched > segment.touched) {
      touch(static_cast<int64_t>(touched - segment.touched));
      segment.touched = touched;
    }

    return header;
  }

  /// Frees a block and merges it with free neighbors.
  void put_back(Header* header) {
    const auto join = [this](Header* first, Header* second) {
      first->block += second->block;
      first->after = second->after;
      if (first->after != nullptr) first->after->before = first;
      // Free memory of a phantom allocator must read as 0, so erase the header of the second block.
      if (phantom_) std::memset(static_cast<void*>(second), 0, header_bytes);
    };
    if (Header* after = header->after; after != nullptr && after->free) {
      free_.erase(after);
      join(header, after);
    }
    if (Header* before = header->before; before != nullptr && before->free) {
      free_.erase(before);
      join(before, header);
      header = before;
    }
    header->free = true;
    free_.insert(header);
  }

  /// Adds a segment for a block of `bytes` bytes. If the system has enough memory, the size of the
  /// segment is at least an eighth of the peak, or 16 huge pages if that is less, so that there are
  /// few segments. Returns false if the system has no memory.
  ///
  /// If the block needs only a small part of the segment's last huge page, as a block with 4 MB of
  /// data and a header does, the memory of that huge page gets small pages. Otherwise, writing a
  /// few bytes there would make 2 MB resident.
  bool grow(size_t bytes) {
    const size_t share = std::min(static_cast<size_t>(stats_.total_peak) / 8, 16 * huge);
    void* memory = nullptr;
    size_t got = 0;
    for (const size_t wanted : {round_to(std::max(bytes, share), huge), round_to(bytes, huge)}) {
      if (memory = from_system(got = wanted, phantom_); memory != nullptr) break;
    }
    if (memory == nullptr) return false;
    count(static_cast<int64_t>(got), 1);
    const size_t last = got - huge;
    const bool ends_with_small_pages = last > 0 && bytes > last && bytes - last <= huge / 8;
    if (ends_with_small_pages && !phantom_)
      madvise(static_cast<char*>(memory) + last, huge, MADV_NOHUGEPAGE);

    auto* segment = new (memory) Header{.block = got, .allocator = this, .free = true};
    segment->segment = segment;
    free_.insert(segment);
    segments_.emplace(segment, Segment{.huge_bytes = ends_with_small_pages ? last : got});
    return true;
  }

  /// Returns segments without used blocks to the system.
  void release_free_segments() {
    for (auto at = segments_.begin(); at != segments_.end();) {
      Header* segment = at->first;
      if (!segment->free || segment->after != nullptr) {
        ++at;
        continue;
      }
      touch(-static_cast<int64_t>(at->second.touched));
      at = segments_.erase(at);
      free_.erase(segment);
      count(-static_cast<int64_t>(segment->block), -1);
      if (is_marked(*segment)) open_memory(segment, segment->block);
      munmap(static_cast<void*>(segment), segment->block);
    }
  }

  void count(int64_t bytes, int64_t blocks) {
    stats_.reserved += bytes;
    stats_.blocks += blocks;
  }

  void touch(int64_t bytes) {
    stats_.touched += bytes;
    stats_.touched_peak = std::max(stats_.touched_peak, stats_.touched);
  }

  void add(Memory category, int64_t bytes) {
    auto& used = stats_.used[static_cast<size_t>(category)];
    auto& peak = stats_.peak[static_cast<size_t>(category)];
    used += bytes;
    stats_.total += bytes;
    if (used > peak) peak = used;
    if (stats_.total > stats_.total_peak) stats_.total_peak = stats_.total;
  }

  const bool phantom_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<Header*>> free_small_;
  std::set<Header*, BySize> free_;
  struct Segment {
    size_t huge_bytes;   // bytes at the beginning of the segment that are in huge pages; the
                         // remaining bytes are in small pages
    size_t touched = 0;  // bytes at the beginning of the segment that may be resident
  };
  // Maps the first block of each segment to the segment. In a free segment, this is the only block.
  std::map<Header*, Segment> segments_;
  MemoryStats stats_;
};

}  // namespace

void install_allocator() {
  c10::SetAllocator(c10::DeviceType::CPU, &CachingAllocator::instance(), /*priority=*/1);
}
MemoryStats memory_stats() { return CachingAllocator::instance().stats(); }
void recategorize(const c10::DataPtr& data, Memory category) {
  CachingAllocator::recategorize(data, category);
}
Memory category_of(const c10::DataPtr& data) { return CachingAllocator::category_of(data); }
namespace {
/// Returns the bytes on the line of /proc/self/status that begins with `name`; nullopt if there is
/// none.
std::optional<int64_t> status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == name && status >> kilobytes) return 1024 * kilobytes;
  }
  return std::nullopt;
}
}  // namespace

int64_t peak_rss_bytes() {
  // getrusage() would ignore reset_peak_rss().
  if (const auto bytes = status_bytes("VmHWM:")) return *bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

int64_t rss_bytes() { return status_bytes("VmRSS:").value_or(0); }

void reset_peak_rss() {
  CachingAllocator::instance().trim();
  malloc_trim(0);
  // Writing 5 resets the peak; see proc(5).
  std::ofstream("/proc/self/clear_refs") << 5;
}
void reset_memory_peaks() { CachingAllocator::instance().reset_peaks(); }

DryRunMemory::DryRunMemory() {
  CachingAllocator::in_use =
      new CachingAllocator(/*phantom=*/true);  // never deleted, since blocks may return to it later
  c10::SetAllocator(c10::DeviceType::CPU, CachingAllocator::in_use, /*priority=*/1);
}
DryRunMemory::~DryRunMemory() {
  std::exchange(CachingAllocator::in_use, nullptr)->trim();
  c10::SetAllocator(c10::DeviceType::CPU, &CachingAllocator::real(), /*priority=*/1);
}

CountedMemory::CountedMemory() : allocator_(&CachingAllocator::instance()), category_(current) {}
CountedMemory::~CountedMemory() { add(-bytes_); }
void CountedMemory::add(int64_t bytes) {
  static_cast<CachingAllocator*>(allocator_)->count_other(category_, bytes);
  bytes_ += bytes;
}

namespace {
thread_local UseMemorySource* source_of_thread = nullptr;
}  // namespace

UseMemorySource::UseMemorySource(MemorySource& source, Memory category, size_t least)
    : source_(source),
      category_(category),
      least_(least),
      outer_(std::exchange(source_of_thread, this)) {}
UseMemorySource::~UseMemorySource() { source_of_thread = outer_; }

c10::DataPtr UseMemorySource::allocate(Memory category, size_t bytes) {
  const UseMemorySource* const own = source_of_thread;
  if (own == nullptr || category != own->category_ || bytes < own->least_) return {};
  return own->source_.allocate(bytes);
}

MemoryScope::MemoryScope(Memory category) : saved_(current) { current = category; }
MemoryScope::~MemoryScope() { current = saved_; }

}  // namespace lathe
