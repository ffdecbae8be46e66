// What may replace the activations that ops keep for backward: packing.h rounds them,
// activation_offload.h keeps them on a disk, and pinned_activations.h in the memory of the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/mode.h"

namespace lathe {

/// An activation in another form.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// Returns the activation, in its own sizes and dtype.
  virtual at::Tensor unpacked() const = 0;
};

/// Packs the tensors that the ops of a thread keep, as long as Mode::packer points to it.
/// Parameters, and tensors that a Recomputation records or restores, are not packed.
class SavedPacker {
 public:
  virtual ~SavedPacker() = default;
  /// Returns t in another form; null if t stays as it is.
  virtual std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) = 0;
  /// Returns whether unpacked() has the very values. If not, ops with OpInfo::exact, losses, and
  /// statistics that an op keeps are left out.
  virtual bool is_exact() const = 0;
};

}  // namespace lathe
