// Manages the folder RUN/checkpoints: lists and verifies its checkpoints, and decides which to
// delete.
//
// A folder checkpoints/step-00001000 is always intact: it is written under another name, which
// begins with unfinished_prefix, its files are synced, the folder is renamed, and the parent folder
// is synced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// The value of "format" in manifest.json for a checkpoint whose tensors are in one file.
constexpr const char* checkpoint_format = "lathe-checkpoint-1";
/// The value of "format" for a checkpoint whose tensors are divided among the files of several
/// processes.
constexpr const char* divided_checkpoint_format = "lathe-checkpoint-2";
/// The beginning of the name of a folder that is being written or deleted.
constexpr const char* unfinished_prefix = ".unfinished-";

/// The size of the largest state.json or manifest.json that is read, in bytes.
constexpr uint64_t max_checkpoint_json = uint64_t{64} << 20;

/// Describes which checkpoints of a run are kept when a new checkpoint is saved.
struct Retention {
  int64_t newest = 1;  ///< number of newest checkpoints to keep
  int64_t every = 0;   ///< if not 0, checkpoints whose step is a multiple of `every` are also kept
  bool best = false;   ///< whether the checkpoint with the lowest validation loss is also kept
};
/// Returns the steps whose checkpoints are to be deleted. `steps` and the result are sorted, newest
/// first.
std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& steps, const Retention& keep,
                                     int64_t best_step);

/// Returns the name of a checkpoint folder, such as "step-00001000".
std::string checkpoint_name(int64_t step);
/// Returns the checkpoints of a run folder, newest first. Sorts by the steps in the checkpoints'
/// states, not by their names. Throws Exit::io if the folder exists and can't be read.
std::vector<fs::path> list_checkpoints(const fs::path& run);
/// Returns the checkpoints that list_checkpoints() returns, each with its step. They include the
/// checkpoints that restore_replaced() would rename.
std::vector<std::pair<int64_t, fs::path>> numbered_checkpoints(const fs::path& run);
/// Returns the step in a checkpoint's state. If the state can't be read, returns the step in the
/// checkpoint's name.
int64_t step_of(const fs::path& checkpoint);
/// Renames the checkpoints of the same run that are newer than `checkpoint` to unusable-step-N,
/// because a run that resumes from `checkpoint` can't use them.
void quarantine_newer(const fs::path& checkpoint);
/// Removes the folders that interrupted and repeated saves left. Logs a warning for each folder
/// that can't be removed.
void clean_checkpoints(const fs::path& run);
/// Renames the complete checkpoint folder `written` to `target`. If the step already has a
/// checkpoint, keeps this older checkpoint under another name until clean_checkpoints() deletes it.
/// If the older checkpoint is unusable, renames it to unusable-step-N and does not delete it.
void move_into_place(const fs::path& written, const fs::path& target);
/// Restores the name of a checkpoint if a process ended within move_into_place(). Call it while the
/// run is locked.
void restore_replaced(const fs::path& run);

/// The two parts of a checkpoint that have tensors. `model` is the model, and `optimizer` is the
/// optimizer's state with all other tensors.
enum class CheckpointPart : uint8_t { model, optimizer };
/// Returns the name of the file that holds the tensors of a part: model.safetensors or
/// optimizer.safetensors. If `ranks` is not 0, the tensors are divided among the files of `ranks`
/// processes, and the result is the name of the file of process `rank`, such as
/// model-00001-of-00004.safetensors for rank 0 of 4.
std::string tensor_file_name(CheckpointPart which, int rank = 0, int ranks = 0);
/// Returns the names of all files of a checkpoint that hold the tensors of a part, in the order of
/// ranks, as listed in the manifest. If there is no manifest, the tensors are in one file. Throws
/// Exit::checkpoint if the manifest can't be read.
std::vector<std::string> tensor_file_names(const fs::path& checkpoint, CheckpointPart which);
/// Returns a checksum that identifies the tensors of the model, from the manifest.
std::string model_id(const fs::path& checkpoint);

/// Compares the sizes and checksums of a checkpoint's files with the manifest. These files include
/// batches.safetensors if the manifest lists it. If a file differs, throws Exit::checkpoint with
/// its name.
void verify_checkpoint(const fs::path& checkpoint);
/// Returns the checksum of a checkpoint's manifest. The checksum identifies the contents, because
/// the manifest has the checksums of the other files.
std::string content_id(const fs::path& checkpoint);
/// Returns the newest checkpoint of a run that verifies, or nullopt if the run has no checkpoints.
/// Logs a warning for each newer checkpoint that does not verify. Throws Exit::checkpoint if the
/// run has checkpoints, but none of them verifies.
std::optional<fs::path> newest_checkpoint(const fs::path& run);
/// Returns a checkpoint that verifies. `path` is a run folder or a checkpoint folder. `which`
/// selects one of a run's checkpoints: "newest", "best" (the lowest validation loss) or a folder's
/// name, such as step-00001000. Throws Exit::checkpoint if there is no such checkpoint. Throws
/// Exit::usage if `path` is a checkpoint folder and `which` is not "newest", or if the best
/// checkpoint does not exist.
fs::path find_checkpoint(const fs::path& path, const std::string& which = "newest");

}  // namespace lathe
