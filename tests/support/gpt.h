// Creates an initialized GPT, and runs a micro-batch of it without a trainer.
#pragma once

#include "data/data.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "train/session/passes.h"

namespace lathe::test {

/// Returns a GPT with the initial weights of its config and `seed`.
inline GPT make_gpt(const GPTConfig& config, uint64_t seed) {
  GPT model(config);
  initialize(model, init_from_config(config.init), seed, config.n_layer);
  return model;
}

/// Runs the forward and backward pass of one micro-batch, and adds its gradients to the existing
/// ones. Returns the loss. `divisor` is passed to head_loss().
inline at::Tensor run_micro_batch(const GPT& model, const Batch& batch, double divisor,
                                  Compute compute, StepRandom random,
                                  const at::Tensor& loss_scale = {}) {
  return lathe::run_micro_batch(
      [&] { return head_loss(model, batch.inputs, batch.targets, divisor); }, compute, random,
      loss_scale);
}

}  // namespace lathe::test
