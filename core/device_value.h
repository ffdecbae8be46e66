// One plain value in a device's memory, for kernels to work on by pointer.
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
  /// Returns the address on its device, for kernels.
  T* pointer() const { return static_cast<T*>(bytes_.data_ptr()); }
  /// Returns the value. Waits for a GPU.
  T get() const {
    T value;
    const at::Tensor host = bytes_.to(at::kCPU);
    std::memcpy(&value, host.const_data_ptr(), sizeof value);
    return value;
  }
  /// Writes the value from the host; on a GPU in the order of its stream.
  void set(const T& value) {
    const at::Tensor host = at::empty({sizeof value}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), &value, sizeof value);
    bytes_.copy_(host);
  }
  /// Returns the value's memory as uint8 [sizeof(T)]; shares it.
  const at::Tensor& bytes() const { return bytes_; }

 private:
  at::Tensor bytes_;
};

}  // namespace lathe
