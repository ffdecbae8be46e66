// The tensors of a checkpoint on the host: as a view of them, to be written before training
// continues, or as a copy, which training does not change. If the optimizer's state is sharded,
// rank 0 writes the checkpoint and collects one tensor after another from the other ranks. The
// checkpoint is therefore the same with and without sharding.
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

namespace lathe {

/// Returns the tensors that model.safetensors holds: the model's parameters, including frozen ones,
/// and its buffers as constants. Omits parameters that were loaded as constants or quantized, such
/// as those of the model under adapters.
std::vector<NamedParameter> saved_tensors(const ConstModuleRef& model);

struct Snapshot {
  /// By file. Their bytes are those of `held`, or are collected from the ranks or read from the
  /// optimizer's scratch file when they are written.
  std::vector<TensorEntry> model, optimizer;
  std::vector<at::Tensor> held;
  int64_t bytes() const;
};
/// Returns a view of the state. Tensors of two or more dimensions have `dtype` in
/// model.safetensors; nullopt keeps their own. Where the two differ, optimizer.safetensors also
/// holds the parameter unchanged, so that a run resumes exactly. The view shares the memory of
/// tensors on the CPU, so write it before anything changes them.
Snapshot view_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype);
/// Returns a copy of the same state, which training does not change. Reuses the memory of `reused`,
/// the previous copy, if its tensors have the same sizes. The memory is of Memory::checkpoints, and
/// is pinned if the tensors are on a GPU. Returns after all tensors are copied.
Snapshot copy_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype, Snapshot reused = {});
/// Returns whether rank 0 collects parts of the state from other ranks.
bool collects_state(const Optimizer& optimizer);
/// Sends rank 0 this rank's parts of the state, while it takes either snapshot or writes a view.
void send_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                std::optional<at::ScalarType> dtype);
/// Returns the bytes of the tensors of either snapshot.
int64_t checkpoint_bytes(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         std::optional<at::ScalarType> dtype);

/// Throws Exit::diverged if an element of a parameter that this process keeps is not finite, so
/// that such weights are never saved. Reads each parameter once.
void check_finite(const std::vector<NamedParameter>& parameters, int64_t step);

/// Calls f(name, tensor, part) for each tensor of the optimizer's state, and of fp8 layers'
/// histories; `part`: of the complete tensor that this process keeps. A tensor on the meta device
/// is in the optimizer's scratch file (Optimizer::read_state).
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
