// Declares the allocator of ATen's CPU tensors, which caches and counts memory. Blocks above 4 KB
// are cut from segments, which are large pieces of memory from the system, by best fit. They are
// merged again when they are freed. Freed smaller blocks are kept for blocks of the same size. A
// training step in steady state therefore requests no memory from the system, and reserved memory
// follows the peak of memory in use. Every byte in use belongs to a category.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace lathe {

/// The purpose of a block of memory.
enum class Memory : uint8_t {
  other,
  parameters,
  gradients,
  optimizer,
  activations,
  data,
  casts,
  checkpoints
};
constexpr std::array<std::string_view, 8> memory_names{
    "other", "parameters", "gradients", "optimizer", "activations", "data", "casts", "checkpoints"};

/// Counts of the allocator, in bytes except for `blocks`.
struct MemoryStats {
  std::array<int64_t, memory_names.size()> used{};  ///< bytes in use now, by category
  std::array<int64_t, memory_names.size()> peak{};  ///< peak of each category
  int64_t total = 0, total_peak = 0;                ///< bytes in use, over all categories
  int64_t reserved = 0;  ///< bytes that were obtained from the system and are in use or cached
  /// Bytes of `reserved` that have been allocated at least once and may therefore be resident.
  int64_t touched = 0, touched_peak = 0;
  int64_t blocks = 0;  ///< number of segments and small blocks that were obtained from the system
};

/// Makes ATen use this allocator for CPU tensors. Call this function before the first tensor is
/// created. Further calls do nothing.
void install_allocator();
/// Returns the counts of this process. Thread-safe.
MemoryStats memory_stats();
/// Returns the peak of this process's resident memory in bytes since the start of the process or
/// the last reset_peak_rss().
int64_t peak_rss_bytes();
/// Returns the resident memory of this process now; 0 if the system does not report it.
int64_t rss_bytes();
/// Returns free memory to the system, and resets the peak that peak_rss_bytes() returns to the
/// current resident memory, if the system permits that.
void reset_peak_rss();
/// Resets every peak of memory_stats() to the current value.
void reset_memory_peaks();

/// Moves a tensor's storage to another category. Does nothing if the storage is not from this
/// allocator.
void recategorize(const c10::DataPtr& data, Memory category);

/// Returns the category of a tensor's storage; Memory::other if it is not from this allocator.
Memory category_of(const c10::DataPtr& data);

/// Counts memory that does not come from the allocator, until destroyed. The memory is counted in
/// the category that is current when this object is created.
class CountedMemory {
 public:
  CountedMemory();
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;
  /// Counts `bytes` more bytes as resident memory in use.
  void add(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  c10::Allocator* allocator_;
  Memory category_;
  int64_t bytes_ = 0;
};

/// A source of memory blocks that a thread can use instead of the allocator; see UseMemorySource.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Returns a block. The deleter of the returned pointer frees the block. Throws if there is no
  /// space.
  virtual c10::DataPtr allocate(size_t bytes) = 0;
};

/// Makes allocations of this thread in `category` with at least `least` bytes come from `source`,
/// until destroyed. These allocations are not counted, and their category is Memory::other. Only
/// the innermost guard of a thread applies.
class UseMemorySource {
 public:
  UseMemorySource(MemorySource& source, Memory category, size_t least);
  ~UseMemorySource();
  UseMemorySource(const UseMemorySource&) = delete;
  UseMemorySource& operator=(const UseMemorySource&) = delete;
  /// Returns a block from the source of this thread's innermost guard; a null pointer if there is
  /// no guard, or if the guard does not apply to this category and size.
  static c10::DataPtr allocate(Memory category, size_t bytes);

 private:
  MemorySource& source_;
  Memory category_;
  size_t least_;
  UseMemorySource* outer_;
};

/// Makes CPU tensors get reserved, uncommitted memory until destroyed. A page of this memory is
/// committed at the first write to the page. A separate allocator provides the memory; it behaves
/// as the normal allocator does in a new process. memory_stats() returns the counts of the separate
/// allocator. A process can have only one DryRunMemory object at a time.
class DryRunMemory {
 public:
  DryRunMemory();
  ~DryRunMemory();
  DryRunMemory(const DryRunMemory&) = delete;
  DryRunMemory& operator=(const DryRunMemory&) = delete;
};

/// Makes allocations of the calling thread belong to `category` until destroyed.
class MemoryScope {
 public:
  explicit MemoryScope(Memory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Memory saved_;
};

}  // namespace lathe
