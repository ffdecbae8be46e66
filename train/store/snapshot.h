// Declares snapshots, which hold the tensors of a checkpoint. A snapshot is written either before
// training continues, or while training continues. In the first case, it is a view of the tensors.
// In the second case, parameters and optimizer state on the CPU are copied before the next update
// changes them, unless they were written before. All other tensors are copied immediately. If the
// state is divided among processes, the snapshot of each process has the elements that this process
// keeps, and a share of the tensors that several processes have.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "core/io/safetensors.h"
#include "nn/module.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "train/store/live_tensors.h"

namespace lathe {

/// Returns the tensors that model.safetensors holds: the model's parameters, including frozen
/// parameters, and its buffers, each in a constant Variable. Omits parameters that are constants or
/// that are not to be saved (Leaf::is_saved), such as the model under adapters.
std::vector<NamedParameter> saved_tensors(const ConstModuleRef& model);

/// Holds the entries of a checkpoint's two files, or of this process's files.
struct Snapshot {
  /// The entries of model.safetensors and of optimizer.safetensors. The bytes of an entry are in
  /// `held`, or they are produced while the entry is written: they are then converted, or read from
  /// the optimizer's scratch file. If an entry does not have all elements of its tensor, its note
  /// describes which elements it has (train/store/checkpoint_tensors.h).
  std::vector<TensorEntry> model, optimizer;
  std::vector<at::Tensor> held;
  std::shared_ptr<LiveTensors> live{};  ///< tensors that copy_state() has not copied yet; null
                                        ///< after view_state()
  bool is_divided = false;  ///< whether other processes write the other parts of the checkpoint
  int64_t bytes() const;
};
/// Returns a view of the state. In model.safetensors, tensors of two or more dimensions have
/// `dtype`, or their own dtype if `dtype` is nullopt. If `dtype` is not the dtype of such a tensor,
/// optimizer.safetensors also holds the tensor unchanged, so that a run resumes exactly. The view
/// shares the memory of tensors on the CPU, so write it before anything changes them. This call is
/// a collective if divides_state().
Snapshot view_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype);
/// Returns the state for a save in the background. Parameters and optimizer state on the CPU become
/// `live` if they have the same dtype in the file. The caller must call live->copy_rest() before an
/// update changes them. All other tensors are copied before this function returns. If the tensors
/// of `reused`, the previous copy, have the same sizes, the copies take over their memory. The
/// memory counts as Memory::checkpoints, and is pinned if the tensors are on a GPU. This call is a
/// collective if divides_state().
Snapshot copy_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype, Snapshot reused = {});
/// Returns whether the parameters or the optimizer's state are divided among the processes, so that
/// each process writes files of the checkpoint.
bool divides_state(const Optimizer& optimizer);

/// Holds the numbers of bytes of the tensors of a checkpoint.
struct CheckpointBytes {
  int64_t all = 0;   ///< bytes of the complete tensors
  int64_t kept = 0;  ///< bytes of the elements that this process keeps in memory
};
/// Returns the sizes of the tensors of a checkpoint. `dtype` is the parameter of view_state().
CheckpointBytes checkpoint_bytes(const std::vector<NamedParameter>& parameters,
                                 const Optimizer& optimizer, std::optional<at::ScalarType> dtype);

/// Throws Exit::diverged if an element of a parameter that this process keeps is not finite, so
/// that such weights are never saved. Logs a warning if an element is not finite in `dtype`, the
/// dtype of the matrices in model.safetensors. Reads each parameter once.
void check_finite(const std::vector<NamedParameter>& parameters, int64_t step,
                  std::optional<at::ScalarType> dtype = std::nullopt);

/// Calls f(name, tensor, part) for each tensor of the optimizer's state, and for the histories of
/// fp8 layers. `part` describes which part of the complete tensor this process keeps. If `tensor`
/// is on the meta device, its values are in the optimizer's scratch file, and
/// Optimizer::read_state() reads them.
template <class F>
void each_state(const Optimizer& optimizer, F&& f) {
  const auto complete = [&](const std::string& name, const at::Tensor& t) {
    f(name, t, StatePart{.sizes = t.sizes().vec(), .own = {0, t.numel()}});
  };
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      for (size_t i = 0; i < slot.state.size(); ++i)
        f(slot.path + "." + slot.names[i], slot.state[i], slot.parts[i]);
      if (const auto& fp8 = slot.param.leaf().precision.fp8; fp8 && fp8->history.defined())
        complete(slot.path + ".fp8_history", fp8->history);
    }
  }
  for (const auto& [name, tensor] : optimizer.shared_state()) complete(name, tensor);
}

}  // namespace lathe
