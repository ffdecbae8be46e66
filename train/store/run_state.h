// Declares RunState, the state of a run without its tensors, and functions for state.json of a
// checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/examples/example_encoding.h"
#include "data/tokenizers/tokenizer.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "train/config/run_config.h"

namespace lathe {

/// Describes a key of the config whose value changed when the run was resumed.
struct ConfigChange {
  int64_t step = 0;  ///< the new value applies after this step
  std::string key, was, is;
};

/// Holds how far a run has come, with the state on which its next step depends.
struct TrainProgress {
  int64_t step = 0;     ///< number of attempted steps; data, randomness and schedule depend on it
  int64_t updates = 0;  ///< number of applied updates; Adam's bias correction depends on it
  int64_t tokens = 0;
  std::optional<double> val_loss, best_val_loss;
  int64_t val_step = -1,
          best_step = -1;  ///< the steps after which val_loss and best_val_loss were measured; -1:
                           ///< never
  int64_t evaluations_since_best = 0;  ///< number of consecutive evaluations without a lower
                                       ///< validation loss
  bool eval_due = false;  ///< whether this step's evaluation was interrupted, so that it runs first
                          ///< on resume
  bool sample_due = false;  ///< whether this step's sample was interrupted, so that it runs first
                            ///< on resume
  std::optional<ScaleState> scaler;  ///< state of the loss scale; nullopt if the run has no loss
                                     ///< scaler
  std::optional<SpikeState> spikes;  ///< state of the spike filter; nullopt if the run has none
};

/// Identifies a run by the inputs on which its bits depend, and by the inputs and outputs of its
/// model.
struct RunIdentity {
  std::string config;     ///< the resolved config, as TOML
  int64_t threads = 1;    ///< number of threads of the first process
  int64_t processes = 1;  ///< number of processes that wrote the checkpoint
  std::string isa, device_model;
  std::string data_hash;
  std::string base_hash;    ///< checksum of the model under adapters; empty if the run has no
                            ///< adapters
  std::string frozen_hash;  ///< checksum of the task's frozen model; empty if the task has none
  std::string task = "language";
  ModelSizes sizes;  ///< sizes of the model's inputs and outputs
  std::optional<Tokenizer> tokenizer;
  std::optional<ExampleEncoding> encoding;  ///< how new examples become inputs; nullopt for tokens
};

/// Holds lengths to which files are truncated when a run resumes from a checkpoint.
struct OutputLengths {
  uint64_t metrics_bytes = 0;                  ///< length of metrics.jsonl
  std::map<std::string, uint64_t> sink_bytes;  ///< lengths of the other files, by path in the run
                                               ///< folder
};

/// Holds where a run comes from.
struct Provenance {
  std::string config_path;  ///< project_path() of the config file; empty if there is no config file
  std::vector<ConfigChange> changes;
  std::string branched_from;  ///< value of checkpoint.resume, as typed, if the run began as a
                              ///< branch; otherwise empty
  std::string branched_id;    ///< content_id() of the checkpoint that the run branched from
  std::string imported_from;  ///< folder or file of an imported model; otherwise empty
  std::vector<std::string> ignored_keys;  ///< ignored keys of the imported config.json or GGUF file
                                          ///< (--ignore-key)
};

/// Holds the state of a run without its tensors.
struct RunState : TrainProgress, RunIdentity, OutputLengths, Provenance {};

/// Returns whether the last `evaluations` evaluations have not lowered the best validation loss.
/// Returns false if `evaluations` is 0. The result depends only on saved state, so a resumed run
/// and all of its processes make the same decision.
bool has_stalled(const TrainProgress& progress, int64_t evaluations);

/// Returns the contents of state.json.
Json state_json(const RunState& state);
/// Reads state.json of a checkpoint, whatever the name of the folder is. Throws Exit::checkpoint if
/// the file is not valid. If a number is out of its range, the message has the field, its value and
/// the range.
RunState read_state(const fs::path& checkpoint);
/// Returns the encoding of examples that checkpoints store. Returns nullopt for tokens, and if
/// there are too many statistics to store in each checkpoint.
std::optional<ExampleEncoding> kept_encoding(const DatasetInfo& info);
/// Throws Exit::data if a data folder has another tokenizer or vocabulary than the run.
void check_tokenizer(const fs::path& data, const DatasetInfo& info, const RunState& state);
/// Returns the config in a checkpoint's state. Throws Exit::checkpoint if the config is not valid,
/// or if the tokenizer has more tokens than the model.
RunConfig saved_config(const RunState& state, const fs::path& checkpoint);

}  // namespace lathe
