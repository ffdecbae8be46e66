// The caching, counting allocator under ATen's CPU tensors. Memory is held in segments that blocks
// are cut from, best fit first, and merged in again, so a steady training step takes nothing from
// the system, and what is held follows what is needed at once; every byte in use belongs to a
// category.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace lathe {

/// What a block of memory is for.
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

struct MemoryStats {
  std::array<int64_t, memory_names.size()> used{};  ///< bytes in use now, by category
  std::array<int64_t, memory_names.size()> peak{};  ///< the most each category held at once
  int64_t total = 0, total_peak = 0;                ///< bytes in use, over all categories
  int64_t reserved = 0;  ///< bytes held from the system, in use or cached
  int64_t touched = 0,
          touched_peak = 0;  ///< of those, bytes that were ever handed out: what is resident
  int64_t blocks = 0;        ///< segments and small blocks held from the system
};

/// Puts the allocator under ATen (idempotent). Call before the first tensor.
void install_allocator();
/// Counts of this process. Thread-safe.
MemoryStats memory_stats();
/// The most memory that this process ever had resident.
int64_t peak_rss_bytes();
/// Sets every peak to what is in use now.
void reset_memory_peaks();

/// Moves a tensor's storage to another category; nothing where it is not from this allocator.
void recategorize(const c10::DataPtr& data, Memory category);

/// While alive, CPU tensors get addresses that nothing is behind until somebody writes there, from
/// an allocator of their own that takes and gives as the other would in a new process;
/// memory_stats() are its. One at a time.
class DryRunMemory {
 public:
  DryRunMemory();
  ~DryRunMemory();
  DryRunMemory(const DryRunMemory&) = delete;
  DryRunMemory& operator=(const DryRunMemory&) = delete;
};

/// While alive, what the calling thread allocates belongs to `category`.
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
