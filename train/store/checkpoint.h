// Checkpoints: folders checkpoints/step-00001000 of a run with
//   model.safetensors  optimizer.safetensors  state.json
//   manifest.json (last: sizes and XXH3 of the others)
// A folder of that name is always whole: it is written under another name, synced, renamed, and the
// parent synced.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "data/tokenizers/tokenizer.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "train/config/path_kind.h"
#include "train/config/run_config.h"
#include "train/store/snapshot.h"

namespace lathe {

/// A key of the config that was given another value while the run was under way.
struct ConfigChange {
  int64_t step = 0;  ///< the first step that was trained with it is the one after this
  std::string key, was, is;
};

/// Everything of a run's state that is no tensor.
struct RunState {
  int64_t step = 0;     ///< steps attempted: data, randomness and schedule go by it
  int64_t updates = 0;  ///< updates applied: Adam's bias correction goes by it
  int64_t tokens = 0;
  std::optional<double> val_loss, best_val_loss;
  int64_t val_step = -1,
          best_step = -1;  ///< the steps after which these two were measured; -1: none was
  bool eval_due =
      false;  ///< stopped before this step's evaluation was through: it comes first on going on
  int64_t threads = 1;
  std::string isa, device_model;
  std::string data_hash;
  uint64_t metrics_bytes = 0;  ///< length of metrics.jsonl at this step
  std::map<std::string, uint64_t>
      sink_bytes;           ///< of the other files that are cut back, by path in the run folder
  std::string config;       ///< resolved, TOML
  std::string config_path;  ///< the config file as project_path() tells it, or empty
  std::vector<ConfigChange> changes;
  std::string branched_from;  ///< what checkpoint.resume named when the run began as a branch, as
                              ///< typed, or empty
  std::string branched_id;    ///< content_id() of the checkpoint that this was
  std::optional<Tokenizer> tokenizer;
  std::string task = "language";
  ModelSizes sizes;                  ///< what the model was made for
  std::string base_hash;             ///< of the model under adapters, or empty
  std::optional<ScaleState> scaler;  ///< of the loss, where the run scales it
  std::optional<SpikeState> spikes;  ///< of the losses so far, where the run leaves out spikes
};

/// Which checkpoints of a run stay when one is added.
struct Retention {
  int64_t newest = 1;  ///< this many
  int64_t every = 0;   ///< and those of steps that this divides; 0: none
  bool best = false;   ///< and the one of the step with the lowest validation loss
};
/// Of `steps`, newest first, those that go.
std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& steps, const Retention& keep,
                                     int64_t best_step);

/// Writes checkpoints/step-N durably and then deletes those that `keep` lets go. Returns its path.
/// Changes no tensor and may run on any thread, one call at a time for a run.
fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep);
/// check_finite, view_state and store_checkpoint.
fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype = std::nullopt);

/// "step-00001000".
std::string checkpoint_name(int64_t step);
/// Writes the files of a checkpoint durably as the folder `target`; what is written until all of it
/// is there has another name. FileError where it can't; then nothing is left, as far as possible.
/// `batches`, where there are any, become batches.safetensors.
void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches = {});

/// The `dtype` of a Snapshot that a config asks for.
std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config);

/// Checkpoints of a run folder, newest first: by the step in their state, not by their name.
/// Exit::io where the folder is there and can't be read.
std::vector<fs::path> list_checkpoints(const fs::path& run);
/// The step in a checkpoint's state; where that can't be read, the one in its name.
int64_t step_of(const fs::path& checkpoint);
/// Renames checkpoints of the same run newer than this one, which a run that resumes from it can't
/// use.
void quarantine_newer(const fs::path& checkpoint);
/// Removes what interrupted saves left behind; what can't be removed is a warning.
void clean_checkpoints(const fs::path& run);

/// Checks sizes and checksums against the manifest, batches.safetensors' too where it is listed;
/// Exit::checkpoint with what is wrong.
void verify_checkpoint(const fs::path& checkpoint);
/// What state.json holds; the folder's name says nothing. Exit::checkpoint with the field, what
/// stands there and what is allowed, where a number is out of its range.
RunState read_state(const fs::path& checkpoint);
/// Exit::data where a data folder was made with another tokenizer or vocabulary than what a
/// checkpoint was trained on.
void check_tokenizer(const fs::path& data, const DatasetInfo& facts, const RunState& state);
/// The config in a checkpoint's state. Exit::checkpoint where it is none that a run can have, or
/// where the tokenizer has more tokens than the model.
RunConfig saved_config(const RunState& state, const fs::path& checkpoint);
/// What tells the contents of one checkpoint from another's: the checksum of its manifest, which
/// has those of the rest.
std::string content_id(const fs::path& checkpoint);
/// An entry of the file at `path` as a tensor that shares its memory. Exit::checkpoint unless it
/// has that shape.
at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path);
/// Copies saved tensors into the parameters: all names must match, with their shapes.
void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
/// The histories of fp8 layers that have one.
void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters);
void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer);
/// Copies the moving averages that optim.ema_decay keeps into the parameters that they are of.
void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained);

/// The newest checkpoint of a run that verifies; a warning names each newer one that does not, and
/// why. nullopt where there is none at all; Exit::checkpoint where none verifies.
std::optional<fs::path> newest_checkpoint(const fs::path& run);
/// A run folder or a checkpoint folder, as a checkpoint that verifies; Exit::checkpoint otherwise.
/// `which` of a run's checkpoints: "newest", "best" (the lowest validation loss) or a folder's
/// name, as step-00001000.
fs::path find_checkpoint(const fs::path& path, const std::string& which = "newest");

}  // namespace lathe
