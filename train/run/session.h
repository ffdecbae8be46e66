// What every verb that runs a model needs, checked before anything is created: data opened, device ready, model made.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "amp/grad_scaler.h"
#include "data/tokens.h"
#include "nn/models/gpt.h"
#include "optim/optimizer.h"
#include "optim/spikes.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Opens data and checks that the model fits it. vocab_size is set where it was 0.
struct RunData {
  std::optional<DataManifest> manifest;
  TokenFile train;
  std::optional<TokenFile> val;

  /// Exit::data or Exit::usage with the place of the key.
  static RunData open(LoadedConfig& loaded);
  /// An identity of the contents of both splits, and whether a saved one is this data's.
  std::string hash() const;
  bool matches(const std::string& saved) const;
};

/// A model with its optimizer on a device, ready to step.
struct Session {
  RunConfig config;
  std::string device_name;  ///< "cpu" or "cuda"
  at::Device device;
  Compute compute;
  GPT model;
  std::vector<NamedParameter> params;  ///< those that are trained
  Optimizer optimizer;
  std::optional<GradScaler> scaler;
  std::optional<SpikeGuard> spikes;  ///< where train.spike_sigma asks for it
  bool low_grad = false;             ///< gradients of matmul weights have the matmul dtype

  /// Opens the device, sets threads, makes the model and its optimizer.
  static Session make(const LoadedConfig& loaded);
  /// Loads parameters, optimizer and scaler.
  void load(const fs::path& checkpoint, const RunState& state);
  Loader::Shape batch_shape() const {
    return {config.train.batch_size, config.model.block_size, config.model.vocab_size};
  }
};

/// Forward and backward of one micro-batch: adds its share of the step's gradients. `divisor` is the number of targets
/// that count in the whole step; backward begins with `loss_scale` where it is defined. Returns
/// the micro-batch's share of the step's loss, [] on the device.
at::Tensor run_micro_batch(const GPT& model, const Batch& batch, double divisor, Compute compute, StepRandom random,
                           const at::Tensor& loss_scale = {});

/// What a run computes in, keeps and saves, in one line for the log.
std::string precision_text(const Session& session);

struct EvalResult {
  double loss = 0;
  int64_t tokens = 0;
};
/// Mean loss over the split's windows, weighted by tokens; no dropout. nullopt where `stop`, asked before each batch,
/// said so.
std::optional<EvalResult> evaluate(const GPT& model, const TokenFile& tokens, Loader::Shape shape, int64_t batches,
                                   Compute compute, at::Device device, const std::function<bool()>& stop = nullptr);

}  // namespace lathe
