// Holds tensors that a background save writes from the memory that training uses. Forward and
// backward passes only read these tensors, so nothing is copied until an update is about to change
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

class LiveTensors : public std::enable_shared_from_this<LiveTensors> {
 public:
  /// Adds a contiguous tensor on the CPU. Returns the tensor's entry for a file, which must be
  /// written at most once. One thread writes all entries, without using ATen's thread pool.
  TensorEntry add(const std::string& name, const at::Tensor& tensor);
  /// Waits for the part that is being written, and then copies the tensors that are not written
  /// completely. Afterwards, all tensors may be changed. The copies count as Memory::checkpoints,
  /// and each copy is freed once it is written.
  void copy_rest();

 private:
  struct Item {
    at::Tensor tensor;  // undefined once the tensor is written
    bool is_copied = false;
  };
  using Put = std::function<void(std::span<const std::byte>)>;
  void write(size_t i, size_t bytes, const Put& put);

  std::mutex mutex_;
  std::condition_variable part_written_;
  std::vector<Item> items_;
  size_t writing_ = SIZE_MAX;  // index of the item of which a part is being written; SIZE_MAX if
                               // there is none
};

}  // namespace lathe
