// Tasks: what a run learns. A task interprets the batches of its data and asks a model for results;
// the trainer depends on this interface only. Each task is a file in this folder and a line in the
// table of table.cc (or, in a program of your own, a call of add_task).
//
// A task may have keys of its own, and need a frozen model beside the trained one: of_run() then
// makes the task of one run, which has both.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "amp/amp.h"
#include "core/io/json.h"
#include "data/data.h"
#include "nn/models/model.h"
#include "train/config/run_config.h"
#include "train/config/task_keys.h"

namespace lathe {

/// The sums of an evaluation over its batches.
struct Scores {
  int64_t targets = 0;
  std::map<std::string, double> sums{};
  bool detailed = false;  ///< whether to add the sums that Task::details needs
};
/// A metric of an evaluation, with its name in files and on the console.
using Metric = std::pair<std::string, double>;

/// What is learned: the loss of a batch, the metrics of an evaluation, and a readable sample. A
/// task of the table has no state.
class Task {
 public:
  virtual ~Task() = default;
  /// Returns the name in train.task and in the data's manifest.
  virtual std::string name() const = 0;
  /// Returns the unit of throughput: "tokens" or "samples".
  virtual std::string unit() const { return "samples"; }
  /// Returns the keys of the task, a section of the config; nullopt where it has none.
  virtual std::optional<TaskKeys> keys() const { return std::nullopt; }
  /// Returns the key of the config that names the frozen model which a run needs beside its own (a
  /// run, a checkpoint or a Hugging Face folder); "" where it needs none.
  virtual std::string frozen_key(const RunConfig& /*config*/) const { return ""; }
  /// Returns the task of one run, or null where that is this task. `frozen` is the model that
  /// frozen_key() names, on the run's device and without trained parameters; null without a key.
  virtual std::unique_ptr<const Task> of_run(const RunConfig& /*config*/,
                                             std::unique_ptr<Model> /*frozen*/) const {
    return nullptr;
  }
  /// Returns the number of targets of a batch, by which the sum of its losses is divided.
  virtual int64_t targets(const Batch& batch) const { return count_targets(batch); }
  /// Returns the sizes of a model for such data.
  virtual ModelSizes sizes(const DatasetInfo& facts) const {
    return {facts.input_sizes, facts.outputs};
  }
  /// Checks that config, model kind and data fit together, and returns sizes(). Throws Exit::usage
  /// or Exit::data with the origin of the key.
  virtual ModelSizes fit(const LoadedConfig& loaded, const Data& data) const = 0;
  /// Returns whether the loss of rows of tokens is the sum of the losses of their positions, so
  /// that positions can be divided among processes (dist.context).
  virtual bool sums_over_positions() const { return false; }
  /// Returns the loss of a micro-batch: summed over its targets and divided by `divisor`, the
  /// number of targets in the whole step, so that micro-batches add up exactly. []
  virtual Variable loss(const Model& model, const Batch& batch, double divisor) const = 0;
  /// Adds a batch to the sums.
  virtual void score(const Model& model, const Batch& batch, const DatasetInfo& facts,
                     Scores& scores) const = 0;
  /// Returns the metrics of an evaluation. The first one, which is lower for a better model,
  /// decides which checkpoint is the best.
  virtual std::vector<Metric> metrics(const Scores& scores) const = 0;
  /// Returns what `lathe eval` reports besides the metrics, as an object: numbers, lists of objects
  /// (tables with a column for each key), and perhaps "confusion", see eval.cc. The scores are
  /// detailed.
  virtual Json details(const Scores& /*scores*/, const DatasetInfo& /*facts*/) const {
    return Json::object();
  }
  /// Returns a readable sample of what the model does; `stop`, which is called now and then, ends
  /// it early.
  virtual std::string sample(const Model& model, const Data& data, const RunConfig& config,
                             Compute compute, at::Device device,
                             const std::function<bool()>& stop) const = 0;
};

/// Returns a config's task on that data. Throws Exit::usage where there is none of that name.
const Task& task_of(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Throws Exit::usage where a key of a task other than `task` differs from its default, since it
/// would have no effect.
void check_task_keys(const LoadedConfig& loaded, const Task& task);
/// Returns the task of that name, or null.
const Task* find_task(const std::string& name);
/// Adds a task; call it before the command line is run. Throws Exit::internal where its name is
/// taken.
void add_task(std::unique_ptr<Task> task);
/// Does what fit() of all tasks on examples must do: checks that there are training examples and,
/// where the run evaluates, validation examples; returns the task's sizes.
ModelSizes fit_examples(const LoadedConfig& loaded, const Data& data, const Task& task);
/// Returns the first few validation examples, for Task::sample; nullopt where there are none.
std::optional<Batch> first_examples(const Data& data, at::Device device);

/// The metrics of an evaluation, and its number of targets.
struct EvalResult {
  std::vector<Metric> metrics;
  int64_t targets = 0;
  Json details = Json::object();  ///< of a detailed evaluation
  /// Returns the metric that decides which checkpoint is the best.
  double loss() const { return metrics.at(0).second; }
};
/// Scores the validation split, or a sample of `batches` batches if that is not 0, without dropout.
/// Processes take turns at the batches, and all run equally many. Before each round of batches, all
/// processes call `stop`; returns nullopt if it returned true. `detailed`: the result has
/// Task::details. Throws Exit::data if no batch has a target.
std::optional<EvalResult> evaluate(const Task& task, const Model& model, const Data& data,
                                   const BatchSizes& sizes, int64_t batches, Compute compute,
                                   at::Device device, const std::function<bool()>& stop = nullptr,
                                   bool detailed = false);

}  // namespace lathe
