// Packing of the tensors that ops save for backward (memory.saved): activations are rounded to
// bfloat16 or fp8 after forward has used them, and widened again when backward reads them. Jain et
// al. 2018, "Gist: efficient data encoding for deep neural network training"; Chen et al. 2021,
// "ActNN".
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

/// An activation in fewer bytes. unpacked() is contiguous.
struct RoundedTensor final : PackedTensor {
  explicit RoundedTensor(at::ScalarType dtype) : dtype(dtype) {}
  at::Tensor unpacked() const override;

  at::Tensor data;       ///< bfloat16, or uint8 with the bits of e4m3 (Micikevicius et al. 2022)
  at::Tensor factors;    ///< scale of each row of `data`, float32; undefined for bfloat16
  at::ScalarType dtype;  ///< dtype of the activation
};

/// While alive, the ops of this thread keep their activations packed: float32 tensors in bfloat16;
/// or float32, bfloat16 and float16 tensors in fp8, with a scale for each row, which spans the
/// fewest last dims that have at least 64 elements. In fp8, a row that is not finite becomes NaN.
/// An activation that several ops keep is packed once.
///
/// The thread's CPU allocations while the guard is alive are counted as activations, except in a
/// MemoryScope of another category. Other CPU tensors are not packed: neither those that were made
/// before, such as the model and the data, nor those of other scopes. GPU memory has no category.
/// On a GPU, inputs of ops that need no gradient or are casts of parameters are not packed. On all
/// devices, the following are not packed: parameters, integers, statistics such as those of a norm,
/// tensors with fewer than `least` elements, the tensors that ops with OpInfo::exact and the losses
/// of autograd/ops/losses.h save, and all tensors that a Recomputation records or restores.
class PackSaved final : public ModeGuard, public SavedPacker {
 public:
  /// Installs Lathe's allocator, which knows the category of a tensor's memory.
  explicit PackSaved(Packing packing, int64_t least = 256);
  std::shared_ptr<const PackedTensor> pack(const at::Tensor& t) override;
  bool is_exact() const override { return false; }
  /// Returns the number of packed tensors that it remembers, including expired ones that are not
  /// removed yet. It is at most 1,024 or twice the number that was alive at the last removal.
  size_t remembered() const { return known_.size(); }

 private:
  /// A tensor that was packed. The weak reference keeps its address from being reused.
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
