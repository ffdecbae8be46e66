// The state of a run without its tensors: RunState, and state.json of a checkpoint.
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

/// A key of the config whose value changed when the run was resumed.
struct ConfigChange {
  int64_t step = 0;  ///< the new value applies after this step
  std::string key, was, is;
};

/// How far a run has come, with the state that its next step depends on.
struct TrainProgress {
  int64_t step = 0;     ///< steps attempted; data, randomness and schedule depend on it
  int64_t updates = 0;  ///< updates applied; Adam's bias correction depends on it
  int64_t tokens = 0;
  std::optional<double> val_loss, best_val_loss;
  int64_t val_step = -1,
          best_step = -1;  ///< the steps after which these two were measured; -1 for none
  int64_t evaluations_since_best = 0;  ///< in a row without a lower validation loss
  bool eval_due = false;    ///< this step's evaluation was interrupted; it runs first on resume
  bool sample_due = false;  ///< the same for this step's sample
  std::optional<ScaleState> scaler;  ///< the loss scale, if there is one
  std::optional<SpikeState> spikes;  ///< the spike filter's state, if there is one
};

/// Identifies a run: the inputs that its bits depend on, and the inputs and outputs of its model.
struct RunIdentity {
  std::string config;     ///< resolved, TOML
  int64_t threads = 1;    ///< of the first process
  int64_t processes = 1;  ///< that wrote the checkpoint
  std::string isa, device_model;
  std::string data_hash;
  std::string base_hash;    ///< of the model under adapters, or empty
  std::string frozen_hash;  ///< of the frozen model of the task, or empty
  std::string task = "language";
  ModelSizes sizes;  ///< of the model's inputs and outputs
  std::optional<Tokenizer> tokenizer;
  std::optional<ExampleEncoding> encoding;  ///< how new examples become inputs; none for tokens
};

/// Lengths of the files that are truncated to a checkpoint's step when a run resumes from it.
struct OutputLengths {
  uint64_t metrics_bytes = 0;                  ///< of metrics.jsonl
  std::map<std::string, uint64_t> sink_bytes;  ///< of the others, by path in the run folder
};

/// Where a run comes from.
struct Provenance {
  std::string config_path;  ///< project_path() of the config file, or empty
  std::vector<ConfigChange> changes;
  std::string branched_from;  ///< checkpoint.resume, as typed, of a run that began as a branch;
                              ///< else empty
  std::string branched_id;    ///< content_id() of that checkpoint
  std::string imported_from;  ///< the folder of an imported model; else empty
  std::vector<std::string> ignored_keys;  ///< of its config.json or GGUF file (--ignore-key)
};

/// The state of a run without its tensors.
struct RunState : TrainProgress, RunIdentity, OutputLengths, Provenance {};

/// Returns whether the last `evaluations` evaluations have not lowered the best validation loss;
/// false for 0. The result depends only on saved state, so a resumed run and all of its processes
/// make the same decision.
bool has_stalled(const TrainProgress& progress, int64_t evaluations);

/// Returns the contents of state.json.
Json state_json(const RunState& state);
/// Reads state.json; the name of the folder is not used. Throws Exit::checkpoint if the file is not
/// valid. If a number is out of its range, the error has the field, its value and the range.
RunState read_state(const fs::path& checkpoint);
/// Returns the encoding of examples that checkpoints store; nullopt for tokens, and if there are
/// too many statistics to store them in each checkpoint.
std::optional<ExampleEncoding> kept_encoding(const DatasetInfo& info);
/// Throws Exit::data if a data folder has another tokenizer or vocabulary than the run.
void check_tokenizer(const fs::path& data, const DatasetInfo& info, const RunState& state);
/// Returns the config in a checkpoint's state. Throws Exit::checkpoint if it is not valid, or if
/// the tokenizer has more tokens than the model.
RunConfig saved_config(const RunState& state, const fs::path& checkpoint);

}  // namespace lathe
