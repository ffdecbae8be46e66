// Declares tasks, which define what a run learns. A task interprets the batches of its data and
// runs the model on them; the trainer depends only on this interface. Each task is a file in this
// folder and a line in the table of table.cc. A program that uses Lathe as a library adds a task by
// add_task().
//
// A task may have config keys, and may need a frozen model beside the trained model. of_run() then
// makes a task for one run, which holds the values of the keys and the frozen model.
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

/// Holds sums over the batches of an evaluation, from which Task::metrics computes the metrics.
struct Scores {
  int64_t targets = 0;
  std::map<std::string, double> sums{};
  bool detailed = false;  ///< whether to add the sums that Task::details needs
};
/// A metric of an evaluation, with its name in files and on the console.
using Metric = std::pair<std::string, double>;

/// Defines the loss of a batch, the metrics of an evaluation, and a readable sample. A task in the
/// table (table.cc) has no state.
class Task {
 public:
  virtual ~Task() = default;
  /// Returns the name in train.task and in the data's manifest.
  virtual std::string name() const = 0;
  /// Returns the unit of throughput: "tokens" or "samples".
  virtual std::string unit() const { return "samples"; }
  /// Returns the keys of the task, a section of the config; nullopt if the task has none.
  virtual std::optional<TaskKeys> keys() const { return std::nullopt; }
  /// Returns the key of the config that names the frozen model which a run needs beside the trained
  /// model. The key's value is a run, a checkpoint or a Hugging Face folder. Returns "" if the run
  /// needs no frozen model.
  virtual std::string frozen_key(const RunConfig& /*config*/) const { return ""; }
  /// Returns a task for one run, or null if this object can be used as the task of the run.
  /// `frozen` is the model that frozen_key() names, on the run's device and without trained
  /// parameters. It is null if frozen_key() returns "".
  virtual std::unique_ptr<const Task> of_run(const RunConfig& /*config*/,
                                             std::unique_ptr<Model> /*frozen*/) const {
    return nullptr;
  }
  /// Returns the number of targets of a batch, by which the sum of its losses is divided.
  virtual int64_t targets(const Batch& batch) const { return count_targets(batch); }
  /// Returns the sizes of a model for data that `facts` describe.
  virtual ModelSizes sizes(const DatasetInfo& facts) const {
    return {facts.input_sizes, facts.outputs};
  }
  /// Checks that the config, the model kind and the data fit together, and returns sizes(). If they
  /// do not fit, throws Exit::usage with the origin of the key, or Exit::data.
  virtual ModelSizes fit(const LoadedConfig& loaded, const Data& data) const = 0;
  /// Returns whether the loss of rows of tokens is the sum of the losses of their positions, so
  /// that positions can be divided among processes (dist.context).
  virtual bool sums_over_positions() const { return false; }
  /// Returns the loss of a micro-batch as a scalar: the sum over its targets, divided by `divisor`.
  /// `divisor` is the number of targets in the complete step, so that the losses of the
  /// micro-batches add up to the mean over the step.
  virtual Variable loss(const Model& model, const Batch& batch, double divisor) const = 0;
  /// Runs the model on a batch, and adds the results to `scores`.
  virtual void score(const Model& model, const Batch& batch, const DatasetInfo& facts,
                     Scores& scores) const = 0;
  /// Returns the metrics of an evaluation. The first metric must be lower for a better model, since
  /// it decides which checkpoint is the best.
  virtual std::vector<Metric> metrics(const Scores& scores) const = 0;
  /// Returns further results for `lathe eval`, as an object: numbers, lists of objects (tables with
  /// a column for each key), and possibly the matrix "confusion" (train/commands/eval.cc).
  /// `scores.detailed` is true.
  virtual Json details(const Scores& /*scores*/, const DatasetInfo& /*facts*/) const {
    return Json::object();
  }
  /// Returns a readable sample of the model's results. `stop` is called repeatedly; if it returns
  /// true, the generation ends early.
  virtual std::string sample(const Model& model, const Data& data, const RunConfig& config,
                             Compute compute, at::Device device,
                             const std::function<bool()>& stop) const = 0;
};

/// Returns the task that train.task names or, if train.task is "auto", the task of the data. Throws
/// Exit::usage or Exit::data if there is no task with this name.
const Task& task_of(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Throws Exit::usage if a key of a task other than `task` differs from its default, since the key
/// would have no effect.
void check_task_keys(const LoadedConfig& loaded, const Task& task);
/// Returns the task with this name, or null if there is none.
const Task* find_task(const std::string& name);
/// Adds a task. Call it before run_cli(). Throws Exit::internal if the task's name is taken.
void add_task(std::unique_ptr<Task> task);
/// Implements fit() for tasks on examples: checks that the data holds examples, that the model kind
/// takes them, and that there are training examples and, if the run evaluates, validation examples.
/// Returns the task's sizes.
ModelSizes fit_examples(const LoadedConfig& loaded, const Data& data, const Task& task);
/// Returns the first few validation examples, for Task::sample; nullopt if there are none.
std::optional<Batch> first_examples(const Data& data, at::Device device);

/// Holds the metrics of an evaluation, and its number of targets.
struct EvalResult {
  std::vector<Metric> metrics;
  int64_t targets = 0;
  Json details = Json::object();  ///< results of Task::details; empty unless the evaluation is
                                  ///< detailed
  /// Returns the metric that decides which checkpoint is the best.
  double loss() const { return metrics.at(0).second; }
};
/// Scores the validation split or, if `batches` is not 0, a sample of `batches` batches, without
/// dropout. Processes take turns at the batches, and all processes run the same number of batches.
/// Before each round of batches, all processes call `stop`; if it returns true, returns nullopt. If
/// `detailed` is true, the result has Task::details. Throws Exit::data if no batch has a target.
std::optional<EvalResult> evaluate(const Task& task, const Model& model, const Data& data,
                                   const BatchSizes& sizes, int64_t batches, Compute compute,
                                   at::Device device, const std::function<bool()>& stop = nullptr,
                                   bool detailed = false);

}  // namespace lathe
