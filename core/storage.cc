#include "core/storage.h"

#include <c10/core/Allocator.h>

#include "core/memory.h"

namespace lathe {

bool owns_memory(const at::Tensor& t) {
  return t.storage_offset() == 0 && t.storage().nbytes() == t.nbytes();
}

void free_storage(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, t.device()));
}

void allocate_storage(const at::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (storage->data() != nullptr) return;
  const MemoryScope memory(Memory::parameters);
  storage->set_data_ptr_noswap(c10::GetAllocator(t.device().type())->allocate(storage->nbytes()));
}

}  // namespace lathe
