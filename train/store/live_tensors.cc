#include "train/store/live_tensors.h"

#include <algorithm>

#include "core/memory.h"
#include "nn/state.h"

namespace lathe {

TensorEntry LiveTensors::add(const std::string& name, const at::Tensor& tensor) {
  const size_t i = items_.size();
  items_.push_back({.tensor = tensor});
  TensorEntry entry = make_entry(name, tensor);
  entry.stream = [all = shared_from_this(), i, name](const auto& put) {
    // A write that fails ends the wait of copy_rest() too.
    struct Writing {
      LiveTensors& all;
      size_t i;
      ~Writing() { all.end_writing(i); }
    };
    const at::Tensor live = all->begin_writing(i);
    const Writing writing{*all, i};
    put(make_entry(name, live).bytes);
  };
  return entry;
}

at::Tensor LiveTensors::begin_writing(size_t i) {
  const std::lock_guard lock(mutex_);
  items_[i].state = State::writing;
  return items_[i].tensor;
}

void LiveTensors::end_writing(size_t i) {
  {
    const std::lock_guard lock(mutex_);
    items_[i].state = State::written;
    items_[i].tensor.reset();
  }
  written_.notify_all();
}

void LiveTensors::copy_rest() {
  const MemoryScope memory(Memory::checkpoints);
  // Backward, since the writing thread goes forward meanwhile.
  for (size_t i = items_.size(); i-- > 0;) {
    const std::lock_guard lock(mutex_);
    if (items_[i].state != State::waiting || items_[i].is_copied) continue;
    items_[i].tensor = items_[i].tensor.clone();
    items_[i].is_copied = true;
  }

  std::unique_lock lock(mutex_);
  written_.wait(lock, [&] {
    return std::none_of(items_.begin(), items_.end(), [](const Item& item) {
      return item.state == State::writing && !item.is_copied;
    });
  });
}

}  // namespace lathe
