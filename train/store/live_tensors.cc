#include "train/store/live_tensors.h"

#include <algorithm>

#include "core/memory.h"
#include "nn/state.h"

namespace lathe {

TensorEntry LiveTensors::add(const std::string& name, const at::Tensor& tensor) {
  items_.push_back({.tensor = tensor});
  TensorEntry entry = make_entry(name, tensor);
  entry.stream = [all = shared_from_this(), i = items_.size() - 1,
                  bytes = tensor.nbytes()](const Put& put) { all->write(i, bytes, put); };
  return entry;
}

void LiveTensors::write(size_t i, size_t bytes, const Put& put) {
  // Ends the wait of copy_rest() after each part, even if writing the part fails.
  struct Writing {
    LiveTensors& all;
    ~Writing() {
      {
        const std::lock_guard lock(all.mutex_);
        all.writing_ = SIZE_MAX;
      }
      all.part_written_.notify_all();
    }
  };

  // Write in parts, so that copy_rest() waits for at most one part, even if the disk is slow.
  constexpr size_t most = size_t{8} << 20;
  for (size_t at = 0; at < bytes; at += most) {
    at::Tensor now;
    {
      const std::lock_guard lock(mutex_);
      now = items_[i].tensor;
      writing_ = i;
    }
    const Writing writing{*this};
    put({static_cast<const std::byte*>(now.const_data_ptr()) + at, std::min(most, bytes - at)});
  }
  const std::lock_guard lock(mutex_);
  items_[i].tensor.reset();
}

void LiveTensors::copy_rest() {
  const MemoryScope memory(Memory::checkpoints);
  // Copy from the last tensor to the first, since the writing thread meanwhile writes from the
  // first to the last.
  for (size_t i = items_.size(); i-- > 0;) {
    std::unique_lock lock(mutex_);
    part_written_.wait(lock, [&] { return writing_ != i; });
    Item& item = items_[i];
    if (!item.tensor.defined() || item.is_copied) continue;
    item.tensor = item.tensor.clone();
    item.is_copied = true;
  }
}

}  // namespace lathe
