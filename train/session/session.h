// Opens the data, prepares the device and makes the model for every command that runs a model.
// Checks everything before anything is created.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "amp/grad_scaler.h"
#include "autograd/activation_offload.h"
#include "core/mapped_memory.h"
#include "dist/exchange.h"
#include "dist/parameter_shards.h"
#include "dist/shards.h"
#include "dist/stage_parameters.h"
#include "nn/models/model.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "train/config/run_config.h"
#include "train/session/frozen_model.h"
#include "train/session/parameter_pages.h"
#include "train/session/values.h"
#include "train/store/checkpoint.h"
#include "train/tasks/task.h"

namespace lathe {

/// A run's data, and the config, task and sizes that follow from it.
struct RunData {
  LoadedConfig loaded;  ///< with the keys that depend on the data
  std::unique_ptr<Data> data;
  const Task* task = nullptr;
  ModelSizes sizes;  ///< sizes of the model's inputs and outputs

  /// Opens data.dir, checks that the config and the model fit the data, and sets the keys that
  /// depend on the data. Throws Exit::data, or Exit::usage with the origin of the key.
  static RunData open(LoadedConfig loaded);
};

/// A model with its optimizer on a device, ready to step.
struct Session {
  RunConfig config;
  RunTask run_task;  ///< owns the task's frozen model, if it needs one
  const Task& task;  ///< the task of this run
  ModelSizes sizes;
  std::string device_name;  ///< "cpu" or "cuda"
  at::Device device;
  Compute compute;
  std::unique_ptr<Model> model;
  std::vector<NamedParameter> params;  ///< the trained parameters
  /// The tensors of model.safetensors: parameters, including frozen ones, and buffers
  /// (saved_tensors()).
  std::vector<NamedParameter> saved;
  std::vector<NamedBuffer> buffers;         ///< of the model
  std::unique_ptr<StageParameters> stage;   ///< if dist.pipeline is above 1, else null
  std::unique_ptr<ShardLayout> layout;      ///< of local_params(), among the data ranks
  std::unique_ptr<ParameterShards> shards;  ///< if dist.shard = "parameters", else null
  Optimizer optimizer;
  std::optional<GradScaler> scaler;
  std::optional<SpikeGuard> spikes;  ///< if train.spike_sigma is above 0, else nullopt
  bool low_grad = false;             ///< whether gradients of matmul weights have the matmul dtype
  ExchangeHistory exchanged{};       ///< of local_params()
  // Each of the next three is null unless memory.offload asks for it.
  std::unique_ptr<MappedMemory> mapped{};              ///< holds the parameters
  std::unique_ptr<ParameterPages> pages{};             ///< decides which parameters are resident
  std::unique_ptr<ActivationOffloader> activations{};  ///< holds activations
  /// With several processes, a line for each parameter and buffer of this process: its path and the
  /// checksum of the values that begin() or load() gave it.
  std::string checksums{};
  std::function<void()> before_update{};  ///< called before parameters and optimizer state change

  /// Returns the parameters for which this process computes gradients: `params`, or with
  /// dist.pipeline those of its stage.
  std::span<const NamedParameter> local_params() const {
    return stage ? stage->local() : std::span<const NamedParameter>(params);
  }
  /// Returns the index, among `params`, of one of local_params().
  size_t index_of_local(size_t i) const { return stage ? stage->index_of_local(i) : i; }
  /// Returns whether dist.shard divides the optimizer's state among data ranks.
  bool divides_state() const;
  /// Returns the hooks that are called around blocks, or null.
  BlockHooks* block_hooks() const {
    return shards ? static_cast<BlockHooks*>(shards.get()) : pages.get();
  }

  /// Opens the device, sets the number of threads, makes the model, applies the transforms and
  /// makes the optimizer. Then calls begin().
  static Session make(const LoadedConfig& loaded, const Task& task, const ModelSizes& sizes);
  /// Does the same for opened data.
  static Session make(const RunData& data) { return make(data.loaded, *data.task, data.sizes); }
  /// Does the same without the call of begin(). The parameters may have no values yet: call begin()
  /// or load() once, before anything else.
  static Session make_without_values(const LoadedConfig& loaded, const Task& task,
                                     const ModelSizes& sizes);
  /// Gives the parameters their initial values, random ones or those of train.init_from, one
  /// parameter after another. With dist.shard = "parameters", dist.pipeline or dist.tensor, each
  /// process keeps only its share, so it never holds the complete model.
  void begin(const LoadedConfig& loaded);
  /// Loads the parameters in the same way, and the state of the optimizer, the scaler and the spike
  /// guard. In a single process, begin() may have been called before.
  void load(const fs::path& checkpoint, const RunState& state);

 private:
  void give_values(const WriteValues& write, bool is_loading);
};

/// While alive, this process has all parameters of the model, even those that dist.shard and
/// dist.pipeline divide. A collective.
class CompleteParameters {
 public:
  explicit CompleteParameters(const Session& session)
      : shards_(session.shards.get()), stage_(session.stage.get()) {}

 private:
  ParameterShards::Gathered shards_;
  StageParameters::Gathered stage_;
};

/// Returns the training FLOPs of a token or sample by the model's formula, with attention over the
/// run's windows (data.window).
double flops_per_unit(const Session& session);

/// Returns a line for the log with the dtypes in which a run computes, keeps and saves.
std::string precision_text(const Session& session);

}  // namespace lathe
