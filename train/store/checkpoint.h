// Checkpoints: folders checkpoints/step-00001000 of a run with
//   model.safetensors  optimizer.safetensors  state.json
//   manifest.json (last: sizes and XXH3 of the others)
// A folder of that name is always intact: it is written under another name, synced, renamed, and
// the parent synced. If the state is divided among processes, each of them writes its tensors into
// two files of its own, and rank 0 writes the other files (train/store/checkpoint_tensors.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/io/safetensors.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/store/checkpoint_folder.h"
#include "train/store/checkpoint_tensors.h"
#include "train/store/run_state.h"
#include "train/store/snapshot.h"

namespace lathe {

/// Writes checkpoints/step-N durably, then deletes the checkpoints that `keep` does not retain.
/// Returns the path of the new checkpoint. Does not change tensors, and may run on any thread, but
/// only once at a time for a run. If the snapshot is divided, all ranks must call this after
/// World::open_saving_group(). If one rank fails, no checkpoint is written.
fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep);
/// Stores a checkpoint of the current parameters and optimizer state, as store_checkpoint() does.
/// Throws Exit::diverged if a parameter is not finite.
fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype = std::nullopt);

/// Writes the files of a checkpoint durably into the folder `target`, which has another name until
/// it is complete. On failure, throws FileError and removes what it wrote, as far as possible. If
/// `batches` is not empty, also writes batches.safetensors. If the snapshot is divided, all ranks
/// must call this, as store_checkpoint(), and only rank 0 writes `batches`.
void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches = {});

/// Copies a checkpoint to checkpoints/step-N of the folder `run`, with `state` as its RunState. The
/// copy is not divided: it has one file for the model and one for the optimizer. Calls
/// `before_tensor` before it copies a tensor. Returns the path of the copy.
fs::path copy_complete(const fs::path& checkpoint, const fs::path& run, const RunState& state,
                       const std::function<void()>& before_tensor);

/// Returns the dtype to pass to view_state() or copy_state() for a config.
std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config);

/// Returns an entry of the file at `path` as a tensor that shares the entry's memory. Throws
/// Exit::checkpoint unless the shape is `sizes`.
at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path);
/// Returns a saved tensor, or this process's part of it if `cut` is not null. `sizes`: those of the
/// returned tensor.
at::Tensor own_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const TensorCut* cut,
                      const fs::path& path);

/// The parameters and buffers of a checkpoint, which are read one at a time.
class SavedParameters {
 public:
  /// The values to read. of_model: those of model.safetensors. for_training: for tensors that
  /// checkpoint.dtype rounded there, the exact values of optimizer.safetensors instead.
  enum class Values : uint8_t { of_model, for_training };

  /// Opens the files. Throws Exit::checkpoint if the model file has another number of tensors.
  SavedParameters(const fs::path& checkpoint, size_t count, Values values = Values::of_model);
  /// Copies the saved values into a parameter or buffer, or this process's part of them
  /// (autograd/tensor_cut.h). Throws Exit::checkpoint if the file has no such tensor, or one of
  /// another shape.
  void read(const NamedParameter& p) const;

 private:
  CheckpointTensors model_;
  std::optional<CheckpointTensors> masters_;
};
/// Copies saved tensors into the parameters. Throws Exit::checkpoint unless all names and shapes
/// match.
void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the fp8 histories of the parameters that have one.
void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the state of the optimizer. Parameters are not changed.
void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer);
/// Throws Exit::usage, for the option --weights ema, if a run keeps no moving averages.
void check_averages(const RunConfig& config);
/// Copies the moving averages that optim.ema_decay keeps into their parameters.
void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained);

}  // namespace lathe
