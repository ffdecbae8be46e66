#include "core/memory.h"

#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <bit>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace lathe {
namespace {

constexpr size_t header_bytes = 64;  // keeps the data 64-byte aligned behind it
constexpr size_t huge = size_t{2} << 20;

struct Header {
  size_t block;  // bytes of the block, header included
  size_t used;   // bytes counted to the category
  Memory category;
};

thread_local Memory current = Memory::other;

/// Block sizes, header included: multiples of 64 up to 512, then eight steps to each power of two, so that at most an
/// eighth is unused. Blocks from 2 MiB up start on a huge page.
size_t block_size(size_t n) {
  n += header_bytes;
  const size_t step = n <= 512 ? 64 : std::bit_floor(n - 1) / 8;
  return (n + step - 1) / step * step;
}

void* from_system(size_t bytes) {
  if (bytes < huge) return std::aligned_alloc(64, bytes);
  // Over-map by a huge page, then give the ends back, so that the block starts on a huge page.
  void* map = mmap(nullptr, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(map);
  char* const aligned = start + (huge - reinterpret_cast<uintptr_t>(start) % huge) % huge;
  if (aligned != start) munmap(start, static_cast<size_t>(aligned - start));
  munmap(aligned + bytes, huge - static_cast<size_t>(aligned - start));
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::DeviceType::CPU};
    const size_t bytes = block_size(n);
    std::unique_lock lock(mutex_);
    auto& list = free_[bytes];
    void* block = nullptr;
    if (!list.empty()) {
      block = list.back();
      list.pop_back();
    } else {
      block = from_system(bytes);
      if (block == nullptr) {
        give_back();
        block = from_system(bytes);
      }
      if (block == nullptr) {
        fail(Exit::memory, "out of memory: ", n, " bytes asked for with ", stats_.total,
             " in use; make batch_size, block_size or the model smaller");
      }
      stats_.reserved += static_cast<int64_t>(bytes);
      ++stats_.blocks;
    }
    auto* header = new (block) Header{bytes, n, current};
    add(header->category, static_cast<int64_t>(n));
    void* data = static_cast<char*>(block) + header_bytes;
    return {data, data, &release, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peaks() {
    std::lock_guard lock(mutex_);
    stats_.peak = stats_.used;
    stats_.total_peak = stats_.total;
  }

  void recategorize(const c10::DataPtr& data, Memory category) {
    if (data.get() == nullptr || data.get_deleter() != &release) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data.get_context()) - header_bytes);
    std::lock_guard lock(mutex_);
    add(header->category, -static_cast<int64_t>(header->used));
    header->category = category;
    add(category, static_cast<int64_t>(header->used));
  }

  // Never destroyed: tensors with static storage may be freed after it.
  static CachingAllocator& instance() {
    static auto* allocator = new CachingAllocator;
    return *allocator;
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    auto& self = instance();
    void* block = static_cast<char*>(data) - header_bytes;
    auto* header = static_cast<Header*>(block);
    std::lock_guard lock(self.mutex_);
    self.add(header->category, -static_cast<int64_t>(header->used));
    self.free_[header->block].push_back(block);
  }

  void add(Memory category, int64_t bytes) {
    auto& used = stats_.used[static_cast<size_t>(category)];
    auto& peak = stats_.peak[static_cast<size_t>(category)];
    used += bytes;
    stats_.total += bytes;
    if (used > peak) peak = used;
    if (stats_.total > stats_.total_peak) stats_.total_peak = stats_.total;
  }

  void give_back() {
    for (auto& [bytes, list] : free_) {
      for (void* block : list) {
        bytes < huge ? std::free(block) : static_cast<void>(munmap(block, bytes));
        stats_.reserved -= static_cast<int64_t>(bytes);
        --stats_.blocks;
      }
      list.clear();
    }
  }

  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_;
  MemoryStats stats_;
};

}  // namespace

void install_allocator() { c10::SetAllocator(c10::DeviceType::CPU, &CachingAllocator::instance(), /*priority=*/1); }
MemoryStats memory_stats() { return CachingAllocator::instance().stats(); }
void recategorize(const c10::DataPtr& data, Memory category) {
  CachingAllocator::instance().recategorize(data, category);
}
int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}
void reset_memory_peaks() { CachingAllocator::instance().reset_peaks(); }

MemoryScope::MemoryScope(Memory category) : saved_(current) { current = category; }
MemoryScope::~MemoryScope() { current = saved_; }

}  // namespace lathe
