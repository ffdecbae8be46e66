#include "core/lazy_zeros.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/memory.h"
#include "core/storage.h"

namespace lathe {
namespace {

constexpr int64_t page_bytes = 4096;

struct Mapping {
  void* begin;
  int64_t bytes;
  CountedMemory counted;
};

void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  ::munmap(mapping->begin, static_cast<size_t>(mapping->bytes));
}

}  // namespace

at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto bytes = static_cast<int64_t>(
      at::detail::computeStorageNbytesContiguous(sizes, options.dtype().itemsize()));
  void* const memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    fail(Exit::memory, "out of memory: the system has no ", bytes,
         " bytes of addresses left for a gradient; make the vocabulary or the model smaller");
  }
  // If the memory consisted of huge pages, the first write to a page would take 2 MB.
  ::madvise(memory, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);

  at::Tensor t = tensor_without_memory(sizes, options);
  auto* const mapping = new Mapping{.begin = memory, .bytes = bytes, .counted = CountedMemory()};
  t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(memory, mapping, unmap, at::kCPU));
  return t;
}

bool is_lazy_zeros(const at::Tensor& t) {
  return t.defined() && t.has_storage() && t.storage().data_ptr().get_deleter() == &unmap;
}

void count_written(const at::Tensor& t, int64_t written) {
  if (!is_lazy_zeros(t)) return;
  auto* const mapping = static_cast<Mapping*>(t.storage().data_ptr().get_context());
  mapping->counted.add(std::min(written, mapping->bytes - mapping->counted.bytes()));
}

void add_to(at::Tensor& t, const at::Tensor& other) {
  count_written(t, static_cast<int64_t>(t.nbytes()));
  t.add_(other);
}

int64_t bytes_of_scattered_rows(int64_t count, int64_t row_bytes) {
  // A row that does not fill complete pages shares its first and its last page with neighboring
  // rows.
  const bool fills_pages = row_bytes % page_bytes == 0;
  return count * page_bytes *
         (fills_pages ? row_bytes / page_bytes : (row_bytes + page_bytes - 1) / page_bytes + 1);
}

}  // namespace lathe
