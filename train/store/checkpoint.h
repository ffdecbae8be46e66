// Checkpoints: folders checkpoints/step-00001000 of a run with
//   model.safetensors  optimizer.safetensors  state.json
//   manifest.json (last: sizes and XXH3 of the others)
// A folder of that name is always intact: it is written under another name, synced, renamed, and
// the parent synced. If the state is divided among processes, each of them writes its tensors into
// two files of its own, and rank 0 the rest (train/store/checkpoint_tensors.h).
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
/// Returns the path of the new one. Changes no tensor and may run on any thread, one call at a time
/// for a run. If the snapshot is divided, all ranks call it, and World::open_saving_group() has
/// been called; if one of them fails, none has written the checkpoint.
fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep);
/// Does the same for tensors that are in memory. Throws Exit::diverged where one is not finite.
fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype = std::nullopt);

/// Writes the files of a checkpoint durably into the folder `target`, which has another name until
/// it is complete. Throws FileError on failure, and then removes what it wrote, as far as possible.
/// If `batches` is not empty, writes batches.safetensors too; rank 0 does if the snapshot is
/// divided. Ranks take part as in store_checkpoint().
void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches = {});

/// Copies a checkpoint, with another RunState, to checkpoints/step-N of the folder `run`, with
/// complete tensors in one file each. Calls `before_tensor` before it copies a tensor. Returns the
/// path of the copy.
fs::path copy_complete(const fs::path& checkpoint, const fs::path& run, const RunState& state,
                       const std::function<void()>& before_tensor);

/// Returns the dtype of a Snapshot for a config.
std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config);

/// Returns an entry of the file at `path` as a tensor that shares its memory. Throws
/// Exit::checkpoint unless it has that shape.
at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path);
/// Returns a saved tensor, or this process's part of it if `cut` is not null. `sizes`: those of the
/// returned tensor.
at::Tensor own_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const TensorCut* cut,
                      const fs::path& path);

/// The parameters and buffers of a checkpoint, which are read one at a time.
class SavedParameters {
 public:
  /// Which values are read: those of model.safetensors, or, for matrices that checkpoint.dtype
  /// rounds there, the exact values in optimizer.safetensors.
  enum class Values : uint8_t { of_model, for_training };

  /// Opens the files. Throws Exit::checkpoint if the model file has another number of tensors.
  SavedParameters(const fs::path& checkpoint, size_t count, Values values = Values::of_model);
  /// Copies the saved values into a parameter or buffer, or this process's part of them
  /// (autograd/tensor_cut.h). Throws Exit::checkpoint if there are none, or of another shape.
  void read(const NamedParameter& p) const;

 private:
  CheckpointTensors model_;
  std::optional<CheckpointTensors> masters_;
};
/// Copies saved tensors into the parameters: all names must match, with their shapes.
void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the histories of fp8 layers that have one.
void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// Loads the state of the optimizer. Parameters are not changed.
void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer);
/// Throws Exit::usage, for the option --weights ema, if a run keeps no moving averages.
void check_averages(const RunConfig& config);
/// Copies the moving averages that optim.ema_decay keeps into their parameters.
void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained);

}  // namespace lathe
