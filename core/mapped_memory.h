// Memory whose pages are in a scratch file (memory.offload = "parameters"). The kernel reads a page
// when it is used, writes changed pages back, and keeps as much of the file in its cache as memory
// is free for. Code that uses the memory needs no change, and sees the same bytes.
//
// Pages that a process has used count as its resident memory, although the kernel can take them
// back. release() gives up those that are not needed for now; their contents stay in the file or in
// the cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>

#include "core/io/scratch_file.h"
#include "core/memory.h"

namespace lathe {

/// Memory in a scratch file. Blocks of it may outlive this object. If a page can't be read, the
/// process ends with Exit::io and a sentence that names the folder.
class MappedMemory final : public MemorySource {
 public:
  /// Opens the file in `folder`; see ScratchFile. In a dry run there is no file, and blocks are
  /// addresses that nobody writes to.
  explicit MappedMemory(const fs::path& folder);

  /// Returns `bytes` bytes of zeros, which begin on a page. Throws FileError with Exit::io if the
  /// disk has no space. A block that is freed gives its space back.
  c10::DataPtr allocate(size_t bytes) override;
  /// Returns the bytes that blocks take in the file now.
  int64_t bytes() const;

  /// Returns whether a block is from any MappedMemory.
  static bool holds(const c10::DataPtr& data);
  /// Asks the kernel to read the pages of a block, and does not wait.
  static void prefetch(const c10::DataPtr& data);
  /// Gives up the pages of a block that are resident.
  static void release(const c10::DataPtr& data);

 private:
  struct State;
  struct Block;
  static void free(void* context);

  std::shared_ptr<State> state_;
};

/// Gives up the resident pages of t if it is from a MappedMemory. Loops over all parameters call it
/// for each, so that they are not resident at the same time.
inline void release_pages(const at::Tensor& t) {
  if (t.defined() && t.has_storage() && MappedMemory::holds(t.storage().data_ptr()))
    MappedMemory::release(t.storage().data_ptr());
}

}  // namespace lathe
