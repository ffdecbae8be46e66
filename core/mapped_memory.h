// Memory whose pages are in a scratch file (memory.offload = "parameters"). The operating system
// reads a page when it is used, writes changed pages back, and caches as much of the file as free
// memory permits. Code that uses the memory needs no change, and sees the same bytes.
//
// Pages that a process has used count as its resident memory, although the operating system can
// reclaim them. release() removes pages that are not needed at the moment from the process's
// resident memory; their contents stay in the file or in the cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>

#include "core/io/scratch_file.h"
#include "core/memory.h"

namespace lathe {

/// Memory in a scratch file. Its blocks may outlive this object. If a page can't be read, the
/// process ends with Exit::io and a sentence that names the folder.
class MappedMemory final : public MemorySource {
 public:
  /// Opens the file in `folder`; see ScratchFile. In a dry run there is no file, and blocks are
  /// reserved addresses.
  explicit MappedMemory(const fs::path& folder);

  /// Returns a block of `bytes` zeros that begins at a page. Throws FileError with Exit::io if the
  /// disk has no space. When the block is freed, its disk space is freed too.
  c10::DataPtr allocate(size_t bytes) override;
  /// Returns the number of bytes that blocks take in the file now.
  int64_t bytes() const;

  /// Returns whether a block is from any MappedMemory.
  static bool holds(const c10::DataPtr& data);
  /// Asks the operating system to read the pages of a block, and does not wait.
  static void prefetch(const c10::DataPtr& data);
  /// Removes the pages of a block from this process's resident memory.
  static void release(const c10::DataPtr& data);

 private:
  struct State;
  struct Block;
  static void free(void* context);

  std::shared_ptr<State> state_;
};

/// Removes the pages of t from this process's resident memory if t is from a MappedMemory. A loop
/// over all parameters calls it after each one, so that they are not all resident at the same time.
inline void release_pages(const at::Tensor& t) {
  if (t.defined() && t.has_storage() && MappedMemory::holds(t.storage().data_ptr()))
    MappedMemory::release(t.storage().data_ptr());
}

}  // namespace lathe
