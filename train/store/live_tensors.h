// Tensors that a save in the background writes from the memory that training uses. Forward and
// backward passes only read them, so nothing is copied until an update is about to change them.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

class LiveTensors : public std::enable_shared_from_this<LiveTensors> {
 public:
  /// Adds a contiguous tensor on the CPU, and returns its entry for a file, which must be written
  /// once at most. That uses none of ATen's threads.
  TensorEntry add(const std::string& name, const at::Tensor& tensor);
  /// Copies the tensors whose entries are not written yet, and waits for one that is being written.
  /// After that, all of them may be changed. The copies are of Memory::checkpoints, and each is
  /// freed when it is written.
  void copy_rest();

 private:
  enum class State { waiting, writing, written };
  struct Item {
    at::Tensor tensor;
    State state = State::waiting;
    bool is_copied = false;
  };
  at::Tensor begin_writing(size_t i);
  void end_writing(size_t i);

  std::mutex mutex_;
  std::condition_variable written_;
  std::vector<Item> items_;
};

}  // namespace lathe
