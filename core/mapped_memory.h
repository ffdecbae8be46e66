// Declares memory whose pages are in a scratch file (memory.offload = "parameters"). The operating
// system reads a page when the page is used, writes changed pages back, and caches as much of the
// file as free memory permits. Code that uses this memory needs no change, and reads the same bytes
// as from ordinary memory.
//
// Pages that a process has used count as its resident memory, although the operating system can
// reclaim them. release() removes pages that are not needed at the moment from the process's
// resident memory. The contents of these pages stay in the file or in the page cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>

#include "core/io/scratch_file.h"
#include "core/memory.h"

namespace lathe {

/// Memory in a scratch file. The blocks that it allocates may outlive this object. If a page can't
/// be read, the process ends with Exit::io and a message that names the folder.
class MappedMemory final : public MemorySource {
 public:
  /// Opens the scratch file in `folder`; see ScratchFile. In a dry run, there is no file, and
  /// blocks consist of reserved addresses.
  explicit MappedMemory(const fs::path& folder);

  /// Returns a block of `bytes` zeros that begins at a page. Throws FileError with Exit::io if the
  /// disk has no space. Freeing the block also frees its disk space.
  c10::DataPtr allocate(size_t bytes) override;
  /// Returns the number of bytes that blocks take in the file now.
  int64_t bytes() const;

  /// Returns whether a MappedMemory allocated the block.
  static bool holds(const c10::DataPtr& data);
  /// Asks the operating system to read the pages of a block. Returns without waiting until they are
  /// read.
  static void prefetch(const c10::DataPtr& data);
  /// Removes the pages of a block from this process's resident memory.
  static void release(const c10::DataPtr& data);

 private:
  struct State;
  struct Block;
  static void free(void* context);

  std::shared_ptr<State> state_;
};

/// Removes the pages of t from this process's resident memory if a MappedMemory allocated t. A loop
/// over all parameters calls this function after each parameter, so that parameters are not all
/// resident at the same time.
inline void release_pages(const at::Tensor& t) {
  if (t.defined() && t.has_storage() && MappedMemory::holds(t.storage().data_ptr()))
    MappedMemory::release(t.storage().data_ptr());
}

}  // namespace lathe
