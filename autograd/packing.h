// Packs the tensors that ops save for backward (memory.saved). Activations are rounded to bfloat16
// or fp8 after forward has used them, and widened again when backward reads them. Jain et al. 2018,
// "Gist: efficient data encoding for deep neural network training"; Chen et al. 2021, "ActNN".
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "autograd/saved_packer.h"
#include "core/memory.h"

namespace lathe {

/// The dtype in which activations are kept.
enum class Packing : uint8_t { bf16, fp8 };

/// Returns the packing called "bf16" or "fp8"; nullopt for any other name, such as "none".
std::optional<Packing> packing_of(std::string_view name);

/// An activation in fewer bytes. The tensor that unpacked() returns is contiguous.
struct RoundedTensor final : PackedTensor {
  explicit RoundedTensor(at::ScalarType dtype) : dtype(dtype) {}
  at::Tensor unpacked() const override;

  at::Tensor data;       ///< bfloat16, or uint8 with the bits of e4m3 (Micikevicius et al. 2022)
  at::Tensor factors;    ///< scale of each row of `data`, float32; undefined for bfloat16
  at::ScalarType dtype;  ///< dtype of the activation
};

/// Makes the ops of this thread keep their activations packed, until destroyed. Packing::bf16 packs
/// float32 tensors in bfloat16. Packing::fp8 packs float32, bfloat16 and float16 tensors in fp8,
/// with a scale for each row. A row is the last dim or, if that has fewer than 64 elements, as many
/// of the last dims as are needed to reach 64 elements. In fp8, all of a row becomes NaN if one of
/// its values is not finite. An activation that several ops keep is packed once.
///
/// On the CPU, a tensor is packed only if its memory has the category Memory::activations. While
/// this object exists, all CPU memory that the thread allocates has this category, except in a
/// MemoryScope of another category. Tensors that were made before, such as the model and the data,
/// are therefore not packed. GPU memory has no category. On a GPU, an input of an op is not packed
/// if it needs no gradient or is a cast of a parameter.
///
/// On all devices, the following are not packed: parameters; integers; statistics such as the mean
/// of a norm; tensors with fewer than `least` elements; expanded tensors, whose elements share
/// memory; tensors that are saved by ops with OpInfo::exact or by the losses of
/// autograd/ops/losses.h; and all tensors that a Recomputation records or restores.
class PackSaved final : public ModeGuard, public SavedPacker {
 public:
  /// Installs Lathe's allocator, which knows the category of a tensor's memory.
  explicit PackSaved(Packing packing, int64_t least = 256);
  std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) override;
  bool is_exact() const override { return false; }
  /// Returns the number of packed tensors that this object remembers, including expired entries
  /// that are not removed yet. The number is at most 1,024 or twice the number of entries that the
  /// last removal left, whichever is larger.
  size_t remembered() const { return known_.size(); }

 private:
  /// A tensor that was packed. The weak reference keeps the address of the tensor from being
  /// reused.
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t version;
    std::weak_ptr<const PackedTensor> packed;
  };

  void forget_expired();

  Packing packing_;
  int64_t least_;
  MemoryScope scope_;
  size_t sweep_at_;  // the size of known_ at which expired entries are removed
  std::unordered_map<const c10::TensorImpl*, Known> known_;
};

}  // namespace lathe
