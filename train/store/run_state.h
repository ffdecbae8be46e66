// The state of a run beside its tensors: RunState, and state.json of a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizers/tokenizer.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "train/config/run_config.h"

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

/// Returns the contents of state.json.
Json state_json(const RunState& state);
/// What state.json holds; the folder's name says nothing. Exit::checkpoint with the field, what
/// stands there and what is allowed, where a number is out of its range.
RunState read_state(const fs::path& checkpoint);
/// Exit::data where a data folder was made with another tokenizer or vocabulary than what a
/// checkpoint was trained on.
void check_tokenizer(const fs::path& data, const DatasetInfo& facts, const RunState& state);
/// The config in a checkpoint's state. Exit::checkpoint where it is none that a run can have, or
/// where the tokenizer has more tokens than the model.
RunConfig saved_config(const RunState& state, const fs::path& checkpoint);

}  // namespace lathe
