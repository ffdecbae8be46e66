#include "core/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include <sys/mman.h>

#include <memory>
#include <utility>

#include "core/memory.h"

namespace lathe {

at::Tensor tensor_without_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(sizes, options.dtype().itemsize());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, options.device()),
      c10::GetAllocator(options.device().type()), /*resizable=*/false);
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(options.computeDispatchKey()),
      options.dtype());
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

bool has_memory(const at::Tensor& t) { return t.numel() == 0 || t.storage().data() != nullptr; }

bool owns_memory(const at::Tensor& t) {
  return t.storage_offset() == 0 && t.storage().nbytes() == t.nbytes();
}

void free_storage(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, t.device()));
}

void replace_by_zeros(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0 || t.is_cuda()) return;
  // The pages of this mapping are never written, so the operating system maps all of them to a
  // single page of zeros.
  const size_t bytes = t.storage().nbytes();
  void* const zeros = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (zeros == MAP_FAILED) return;

  struct Mapping {
    void* begin;
    size_t bytes;
  };
  const auto unmap = [](void* mapping) {
    const std::unique_ptr<Mapping> m(static_cast<Mapping*>(mapping));
    ::munmap(m->begin, m->bytes);
  };
  t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(zeros, new Mapping{zeros, bytes}, unmap, t.device()));
}

void allocate_storage(const at::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (storage->data() != nullptr) return;
  const MemoryScope memory(Memory::parameters);
  storage->set_data_ptr_noswap(c10::GetAllocator(t.device().type())->allocate(storage->nbytes()));
}

}  // namespace lathe
