// Defines DeviceValue, a single value in the memory of a device. Kernels access the value by
// pointer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <type_traits>

namespace lathe {

/// A value of a trivially copyable type in the memory of a device.
template <class T>
class DeviceValue {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceValue(at::Device device, const T& value = {})
      : bytes_(at::empty({sizeof(T)}, at::TensorOptions().dtype(at::kByte).device(device))) {
    set(value);
  }
  /// Returns the value's address in the memory of its device, for kernels.
  T* pointer() const { return static_cast<T*>(bytes_.data_ptr()); }
  /// Returns the value. On a GPU, waits until queued kernels have finished.
  T get() const {
    T value;
    const at::Tensor host = bytes_.to(at::kCPU);
    std::memcpy(&value, host.const_data_ptr(), sizeof value);
    return value;
  }
  /// Sets the value to a copy of `value`, which is in host memory. On a GPU, queues the copy on the
  /// current stream and waits until it has finished.
  void set(const T& value) {
    const at::Tensor host = at::empty({sizeof value}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), &value, sizeof value);
    bytes_.copy_(host);
  }
  /// Returns a tensor uint8 [sizeof(T)] that shares the value's memory.
  const at::Tensor& bytes() const { return bytes_; }

 private:
  at::Tensor bytes_;
};

}  // namespace lathe
