// Writes and reads checkpoints, which are folders checkpoints/step-00001000 of a run with the files
//   model.safetensors  optimizer.safetensors  state.json
//   manifest.json (written last; holds sizes and XXH3 checksums of the other files)
// A folder with such a name is always intact: it is written under another name, its files are
// synced, it is renamed, and its parent folder is synced. If the state is divided among processes,
// each process writes its tensors into two separate files, and rank 0 writes the other files
// (train/store/checkpoint_tensors.h).
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
/// Returns the path of the new checkpoint. Does not change tensors. Any thread may call it, but a
/// run may have only one call at a time. If the snapshot is divided, all ranks must call it after
/// World::open_saving_group(). If one rank fails, no checkpoint is written.
fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep);
/// Stores a checkpoint of the current parameters and optimizer state, as store_checkpoint() does.
/// Throws Exit::diverged if a parameter is not finite.
fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype = std::nullopt);

/// Writes the files of a checkpoint durably into a temporary folder, which is renamed to `target`
/// when it is complete. If a file can't be written, throws FileError and removes the temporary
/// folder, as far as possible. If `batches` is not empty, also writes batches.safetensors. If the
/// snapshot is divided, all ranks must call this function, as they do with store_checkpoint(), and
/// only rank 0 writes `batches`.
void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches = {});

/// Copies a checkpoint to checkpoints/step-N of the folder `run`, with `state` as its RunState. The
/// copy is not divided: one file holds the model's tensors, and one file holds the optimizer's.
/// Calls `before_tensor` before it copies a tensor. Returns the path of the copy.
fs::path copy_complete(const fs::path& checkpoint, const fs::path& run, const RunState& state,
                       const std::function<void()>& before_tensor);

/// Returns the dtype to pass to view_state() or copy_state() for a config.
std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config);

/// Returns an entry of the file at `path` as a tensor that shares the entry's memory. Throws
/// Exit::checkpoint if the entry's shape is not `sizes`.
at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path);
/// Returns a saved tensor or, if `cut` is not null, this process's part of the tensor. `sizes`: the
/// sizes of the returned tensor.
at::Tensor own_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const TensorCut* cut,
                      const fs::path& path);

/// Reads the parameters and buffers of a checkpoint, one at a time.
class SavedParameters {
 public:
  /// Which values to read. of_model: the values in model.safetensors. for_training: if
  /// checkpoint.dtype rounded a tensor in model.safetensors, its exact values in
  /// optimizer.safetensors; otherwise, the values in model.safetensors.
  enum class Values : uint8_t { of_model, for_training };

  /// Opens the files. Throws Exit::checkpoint if the model file does not have `count` tensors.
  SavedParameters(const fs::path& checkpoint, size_t count, Values values = Values::of_model);
  /// Copies the saved values into a parameter or buffer. If the parameter is cut, copies this
  /// process's part of the values (autograd/tensor_cut.h). Throws Exit::checkpoint if the file has
  /// no tensor of this name, or a tensor of another shape.
  void read(const NamedParameter& p) const;

 private:
  CheckpointTensors model_;
  std::optional<CheckpointTensors> masters_;
};
/// Copies saved tensors into the parameters. Throws Exit::checkpoint if a name or a shape differs.
void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the histories of fp8 maxima of the parameters that have a history.
void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the state of the optimizer. Parameters are not changed.
void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer);
/// Throws Exit::usage, for the option --weights ema, if the run keeps no moving averages.
void check_averages(const RunConfig& config);
/// Copies the moving averages that optim.ema_decay keeps into the parameters to which they belong.
void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained);

}  // namespace lathe
