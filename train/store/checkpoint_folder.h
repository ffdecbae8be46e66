// Manages the folder RUN/checkpoints: lists and verifies its checkpoints, and decides which to
// delete.
//
// A folder checkpoints/step-00001000 is always intact: it is written under another name, which
// begins with unfinished_prefix, synced, renamed, and the parent synced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// The value of "format" in manifest.json.
constexpr const char* checkpoint_format = "lathe-checkpoint-1";
/// The value of "format" for a checkpoint whose tensors are divided among the files of several
/// processes.
constexpr const char* divided_checkpoint_format = "lathe-checkpoint-2";
/// Begins the name of a folder that is being written or deleted.
constexpr const char* unfinished_prefix = ".unfinished-";

/// The largest state.json or manifest.json that is read, in bytes.
constexpr uint64_t max_checkpoint_json = uint64_t{64} << 20;

/// The checkpoints of a run that are kept when a new one is saved.
struct Retention {
  int64_t newest = 1;  ///< this many of the newest
  int64_t every = 0;   ///< also those whose step is a multiple of this; 0: none
  bool best = false;   ///< also the one with the lowest validation loss
};
/// Returns the steps whose checkpoints are to be deleted. `steps` and the result are sorted, newest
/// first.
std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& steps, const Retention& keep,
                                     int64_t best_step);

/// Returns the name of a checkpoint folder, such as "step-00001000".
std::string checkpoint_name(int64_t step);
/// Returns the checkpoints of a run folder, newest first, by the step in their state and not by
/// their name. Throws Exit::io if the folder exists and can't be read.
std::vector<fs::path> list_checkpoints(const fs::path& run);
/// Returns the same checkpoints, each with its step. They include those that restore_replaced()
/// would rename.
std::vector<std::pair<int64_t, fs::path>> numbered_checkpoints(const fs::path& run);
/// Returns the step in a checkpoint's state, or the one in its name if the state can't be read.
int64_t step_of(const fs::path& checkpoint);
/// Renames the checkpoints of the same run that are newer than this one to unusable-step-N, because
/// a run that resumes from this one can't use them.
void quarantine_newer(const fs::path& checkpoint);
/// Removes the folders that interrupted and repeated saves left. Logs a warning for each one that
/// can't be removed.
void clean_checkpoints(const fs::path& run);
/// Renames a complete checkpoint folder to its name. If the step has a checkpoint already, the
/// older one is kept under another name until clean_checkpoints() deletes it. If the older one is
/// unusable, it is renamed to unusable-step-N and not deleted.
void move_into_place(const fs::path& written, const fs::path& target);
/// Gives a checkpoint its name back if a process ended within move_into_place(). Call it while the
/// run is locked.
void restore_replaced(const fs::path& run);

/// The two parts of a checkpoint that have tensors: the model; and the optimizer's state with all
/// other tensors.
enum class CheckpointPart : uint8_t { model, optimizer };
/// Returns the name of the file that holds the tensors of a part: model.safetensors or
/// optimizer.safetensors. If `ranks` is not 0, the tensors are divided among the files of `ranks`
/// processes, and the result is the name of the file of process `rank`, such as
/// model-00001-of-00004.safetensors for rank 0 of 4.
std::string tensor_file_name(CheckpointPart which, int rank = 0, int ranks = 0);
/// Returns the names of all files of a checkpoint that hold the tensors of a part, in the order of
/// ranks, as listed in the manifest. Without a manifest, there is one file. Throws Exit::checkpoint
/// if the manifest can't be read.
std::vector<std::string> tensor_file_names(const fs::path& checkpoint, CheckpointPart which);
/// Returns a checksum that identifies the tensors of the model, from the manifest.
std::string model_id(const fs::path& checkpoint);

/// Compares sizes and checksums with the manifest, also of batches.safetensors if it is listed.
/// Throws Exit::checkpoint with the file that differs.
void verify_checkpoint(const fs::path& checkpoint);
/// Returns the checksum of a checkpoint's manifest. It identifies the contents, because the
/// manifest has the checksums of the other files.
std::string content_id(const fs::path& checkpoint);
/// Returns the newest checkpoint of a run that verifies, or nullopt if the run has no checkpoints.
/// Logs a warning for each newer one that does not verify. Throws Exit::checkpoint if there are
/// checkpoints, but none of them verifies.
std::optional<fs::path> newest_checkpoint(const fs::path& run);
/// Returns a checkpoint that verifies, of a run folder or of a checkpoint folder. `which` of a
/// run's checkpoints: "newest", "best" (the lowest validation loss) or a folder's name, such as
/// step-00001000. Throws Exit::checkpoint if there is none, and Exit::usage if `which` is not
/// "newest" with a checkpoint folder, or if the best checkpoint does not exist.
fs::path find_checkpoint(const fs::path& path, const std::string& which = "newest");

}  // namespace lathe
