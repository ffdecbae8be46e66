// Declares RunData, which opens the data of a run, and Session, which prepares the device and makes
// the model. Commands that run a model use both. They check the config before the command writes to
// the run folder.
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

/// Holds a run's data, and the config, task and sizes that follow from the data.
struct RunData {
  LoadedConfig loaded;  ///< config, including the keys that depend on the data
  std::unique_ptr<Data> data;
  const Task* task = nullptr;
  ModelSizes sizes;  ///< sizes of the model's inputs and outputs

  /// Opens data.dir, checks that the config and the model fit the data, and sets the keys that
  /// depend on the data. Throws Exit::data if the data can't be used, and Exit::usage with the
  /// origin of the key if a key does not fit the data.
  static RunData open(LoadedConfig loaded);
};

/// Holds a model with its optimizer on a device, ready to step.
struct Session {
  RunConfig config;
  RunTask run_task;  ///< holds the task's frozen model, if the task needs one
  const Task& task;  ///< the task of this run
  ModelSizes sizes;
  std::string device_name;  ///< "cpu" or "cuda"
  at::Device device;
  Compute compute;
  std::unique_ptr<Model> model;
  std::vector<NamedParameter> params;  ///< the trained parameters
  /// The tensors of model.safetensors, as saved_tensors() returns them: parameters, including
  /// frozen parameters, and buffers.
  std::vector<NamedParameter> saved;
  std::vector<NamedBuffer> buffers;        ///< buffers of the model
  std::unique_ptr<StageParameters> stage;  ///< pipeline stage; null unless dist.pipeline is above 1
  std::unique_ptr<ShardLayout> layout;     ///< layout of local_params() among the data ranks
  std::unique_ptr<ParameterShards> shards;  ///< shards; null unless dist.shard = "parameters"
  Optimizer optimizer;
  std::optional<GradScaler> scaler;
  std::optional<SpikeGuard> spikes;  ///< guard against loss spikes; nullopt unless
                                     ///< train.spike_sigma is above 0
  bool low_grad = false;             ///< whether gradients of matmul weights have the matmul dtype
  ExchangeHistory exchanged{};  ///< which of local_params() had gradients in the previous exchange
  // The following three members are null unless memory.offload asks for them.
  std::unique_ptr<MappedMemory> mapped{};              ///< memory that holds the parameters
  std::unique_ptr<ParameterPages> pages{};             ///< decides which parameters are resident
  std::unique_ptr<ActivationOffloader> activations{};  ///< holds activations
  /// With several processes, a line for each parameter and buffer of this process: its path and the
  /// checksum of the values that begin() or load() gave it.
  std::string checksums{};
  std::function<void()> before_update{};  ///< called before parameters and optimizer state change

  /// Returns the parameters for which this process computes gradients. With dist.pipeline, returns
  /// the parameters of this process's stage, otherwise `params`.
  std::span<const NamedParameter> local_params() const {
    return stage ? stage->local() : std::span<const NamedParameter>(params);
  }
  /// Returns the index in `params` of element `i` of local_params().
  size_t index_of_local(size_t i) const { return stage ? stage->index_of_local(i) : i; }
  /// Returns whether dist.shard divides the optimizer's state among data ranks.
  bool divides_state() const;
  /// Returns the hooks that are called around blocks; null if there are none.
  BlockHooks* block_hooks() const {
    return shards ? static_cast<BlockHooks*>(shards.get()) : pages.get();
  }

  /// Opens the device, sets the number of threads, makes the model, applies the transforms and
  /// makes the optimizer. Then calls begin().
  static Session make(const LoadedConfig& loaded, const Task& task, const ModelSizes& sizes);
  /// Does the same with data that is already open.
  static Session make(const RunData& data) { return make(data.loaded, *data.task, data.sizes); }
  /// Makes a session as make() does, but does not call begin(). The parameters may have no values
  /// yet, so call begin() or load() once before using the session.
  static Session make_without_values(const LoadedConfig& loaded, const Task& task,
                                     const ModelSizes& sizes);
  /// Gives the parameters their initial values, one parameter after another. The values are random
  /// or, with train.init_from, the values of the source. With dist.shard = "parameters",
  /// dist.pipeline or dist.tensor, each process keeps only its share, so it never holds the
  /// complete model.
  void begin(const LoadedConfig& loaded);
  /// Loads the values of the parameters, one parameter after another, and the state of the
  /// optimizer, the scaler and the spike guard. In a single process, begin() may have been called
  /// before.
  void load(const fs::path& checkpoint, const RunState& state);

 private:
  void give_values(const WriteValues& write, bool is_loading);
};

/// Gives this process all parameters of the model until destroyed, even the parameters that
/// dist.shard and dist.pipeline divide. The constructor is a collective.
class CompleteParameters {
 public:
  explicit CompleteParameters(const Session& session)
      : shards_(session.shards.get()), stage_(session.stage.get()) {}

 private:
  ParameterShards::Gathered shards_;
  StageParameters::Gathered stage_;
};

/// Returns the training FLOPs of a token or sample by the model's formula. If data.window is set,
/// attention is counted over the run's windows.
double flops_per_unit(const RunConfig& config, const Model& model, const ModelSizes& sizes);
/// Returns the same FLOPs for the model of a session.
inline double flops_per_unit(const Session& session) {
  return flops_per_unit(session.config, *session.model, session.sizes);
}

/// Returns a line for the log with the dtypes in which a run computes, keeps and saves.
std::string precision_text(const Session& session);

}  // namespace lathe
