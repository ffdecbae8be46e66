// Tasks: what a run learns. A task knows what the batches of its data mean and asks a model for
// results; the trainer knows this interface alone. One is a file in this folder and a line in the
// table of table.cc (or, in a program of your own, a call of add_task).
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
#include "data/data.h"
#include "nn/models/model.h"
#include "train/config/run_config.h"

namespace lathe {

/// What an evaluation adds up, batch by batch.
struct Scores {
  int64_t targets = 0;
  std::map<std::string, double> sums;
};
/// A figure of an evaluation, by the name that files and the console give it.
using Metric = std::pair<std::string, double>;

/// What is learned: the loss of a batch, an evaluation's figures, a sample for a person. Stateless
/// but for its config.
class Task {
 public:
  virtual ~Task() = default;
  /// As train.task and the data's manifest call it.
  virtual std::string name() const = 0;
  /// What throughput counts: "tokens" or "samples".
  virtual std::string unit() const { return "samples"; }
  /// What a model of such data is made for.
  virtual ModelSizes sizes(const DatasetInfo& facts) const {
    return {facts.input_sizes, facts.outputs};
  }
  /// Checks that config, model kind and data go together, fills the keys that follow the data, and
  /// returns sizes(). Exit::usage or Exit::data with the place of the key.
  virtual ModelSizes fit(LoadedConfig& loaded, const Data& data) const = 0;
  /// The loss of a micro-batch: summed over its targets and divided by `divisor`, the number of
  /// targets in the whole step, so that micro-batches add up exactly. []
  virtual Variable loss(const Model& model, const Batch& batch, double divisor) const = 0;
  /// Adds a batch's figures.
  virtual void score(const Model& model, const Batch& batch, const DatasetInfo& facts,
                     Scores& scores) const = 0;
  /// The figures of an evaluation. The first one, lower for a better model, decides which
  /// checkpoint is the best.
  virtual std::vector<Metric> metrics(const Scores& scores) const = 0;
  /// Something that a person can read of what the model does; `stop`, asked now and then, ends it
  /// early.
  virtual std::string sample(const Model& model, const Data& data, const RunConfig& config,
                             Compute compute, at::Device device,
                             const std::function<bool()>& stop) const = 0;
};

/// The task of a config on that data. Exit::usage where there is none of that name.
const Task& task_of(const LoadedConfig& loaded, const DatasetInfo& facts);
/// The task of that name, or null.
const Task* find_task(const std::string& name);
/// Adds a task, before the command line is run. Exit::internal where its name is taken.
void add_task(std::unique_ptr<Task> task);
/// What fit() of tasks on examples has in common: training examples and, where the run evaluates,
/// validation examples.
ModelSizes fit_examples(const LoadedConfig& loaded, const Data& data, const Task& task);
/// The first few validation examples, for Task::sample; nullopt where there are none.
std::optional<Batch> first_examples(const Data& data, at::Device device);

/// An evaluation's figures and over how many targets.
struct EvalResult {
  std::vector<Metric> metrics;
  int64_t targets = 0;
  /// The figure that decides.
  double loss() const { return metrics.at(0).second; }
};
/// Scores the validation split, or its first `batches` batches where that is not 0, without
/// dropout. nullopt where `stop`, asked before each batch, said so.
std::optional<EvalResult> evaluate(const Task& task, const Model& model, const Data& data,
                                   const BatchSizes& sizes, int64_t batches, Compute compute,
                                   at::Device device, const std::function<bool()>& stop = nullptr);

}  // namespace lathe
