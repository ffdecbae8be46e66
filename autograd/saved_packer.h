// Declares the interface of classes that store, in another form, the activations that ops save for
// backward. packing.h rounds the activations, activation_offload.h keeps them on a disk, and
// pinned_activations.h keeps them in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/mode.h"

namespace lathe {

/// An activation in the form in which a SavedPacker stores it.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// Returns the activation in its original sizes and dtype.
  virtual at::Tensor unpacked() const = 0;
};

/// Packs the tensors that the ops of a thread save, while Mode::packer points to this object.
/// Parameters, and tensors that a Recomputation records or restores, are not packed.
class SavedPacker {
 public:
  virtual ~SavedPacker() = default;
  /// Returns the packed form of t, or null if t is not packed.
  virtual std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) = 0;
  /// Returns whether unpacked() has exactly the values of the packed tensor. If false, three kinds
  /// of tensors are not packed: tensors of ops with OpInfo::exact, tensors of losses, and
  /// statistics that an op saves.
  virtual bool is_exact() const = 0;
};

/// Returns whether the activations that the ops of this thread save are rounded.
inline bool saves_rounded() {
  const Mode& m = mode();
  return m.packer != nullptr && !m.packer->is_exact() && m.recording == nullptr &&
         m.replaying == nullptr;
}

}  // namespace lathe
