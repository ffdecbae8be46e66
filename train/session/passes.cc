#include "train/session/passes.h"

#include "amp/amp.h"
#include "autograd/deferred.h"
#include "autograd/engine.h"
#include "autograd/packing.h"
#include "autograd/pipeline_stage.h"
#include "autograd/recompute.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/named_range.h"
#include "core/running_statistic.h"
#include "dist/context_ranks.h"
#include "dist/sequence_ranks.h"
#include "dist/world.h"
#include "nn/anomaly.h"

namespace lathe {

at::Tensor run_micro_batch(const std::function<Variable()>& loss_of, Compute compute,
                           StepRandom random, const at::Tensor& loss_scale) {
  const MemoryScope memory(Memory::activations);
  const TrainingStep step(random);
  Variable loss;
  {
    const Autocast autocast(compute);
    const NamedRange range([] { return std::string("forward"); });
    loss = loss_of();
  }
  const NamedRange range([] { return std::string("backward"); });
  world().note(RankPhase::backward);
  backward(loss, loss_scale);
  return loss.data();
}

namespace {

/// Makes passes use a session's keys of [memory] and train.detect_anomaly while this object exists.
class PassScope {
 public:
  explicit PassScope(const Session& s)
      : session_(s), recompute_(*recompute_policy(s.config.memory.recompute), &blocks_) {
    for (const NamedBuffer& b : s.buffers) versions_.push_back(b.tensor._version());
    // Outside of a step, for example in measurements, passes update no running statistics.
    if (mode().running_statistics == nullptr) mode().running_statistics = &dropped_;
    if (divides_sequence(s.config.dist)) sequence_.emplace();
    mode().block_hooks = s.block_hooks();
    if (const auto dtype = packing_of(s.config.memory.saved)) packing_.emplace(*dtype);
    if (s.activations) offload_.emplace(*s.activations);
    if (s.config.train.detect_anomaly)
      anomalies_.emplace(
          DetectAnomaly::Options{.backward = !s.scaler || s.config.amp.scaler == "fixed"});
  }

  /// Returns the loss of a micro-batch. Throws Exit::usage if memory.recompute is set but applies
  /// to none of the blocks that the model ran. On a pipeline stage this is not an error, since the
  /// stage may have no block of the range that memory.recompute names.
  Variable loss(const Batch& batch, double divisor) const {
    const Batch own = {.inputs = own_positions(batch.inputs),
                       .targets = own_positions(batch.targets),
                       .starts = own_positions(batch.starts),
                       .source = batch.source};
    const auto loss_of = [&] { return session_.task.loss(*session_.model, own, divisor); };
    const bool fuses = session_.config.train.fuse == "auto" && session_.device.is_cpu();
    Variable loss = fuses ? deferred(loss_of, buffers()) : loss_of();
    check_buffers();
    const std::string& policy = session_.config.memory.recompute;
    if (policy != "none" && blocks_ == 0 && mode().stage == nullptr) {
      fail(Exit::usage, "memory.recompute = \"", policy,
           "\" applies to no block that model.kind = \"", session_.config.model.kind,
           "\" ran with run_blocks() (autograd/recompute.h); set memory.recompute to \"none\"");
    }
    if (sequence_ && !sequence_->ran_blocks()) refuse_hidden_blocks("dist.sequence_parallel");
    return loss;
  }

 private:
  std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> all;
    for (const NamedBuffer& b : session_.buffers) all.push_back(b.tensor);
    return all;
  }

  /// Throws Exit::usage if the forward pass has changed a buffer in place, and the run computes
  /// forward passes twice or in several processes. Without this check, results would silently
  /// differ.
  void check_buffers() const {
    const MemoryConfig& memory = session_.config.memory;
    const char* why = nullptr;
    if (world().data().size > 1) why = "each process would change its copy of the buffer";
    if (memory.update_in_backward) why = "memory.update_in_backward may run the forward pass twice";
    if (memory.recompute != "none") why = "memory.recompute runs blocks again";
    if (why == nullptr) return;
    for (size_t i = 0; i < versions_.size(); ++i) {
      if (session_.buffers[i].tensor._version() == versions_[i]) continue;
      fail(Exit::usage, "the forward pass of model.kind = \"", session_.config.model.kind,
           "\" changes its buffer ", session_.buffers[i].path, " in place, but ", why,
           "; call record_running() (core/running_statistic.h) instead, which takes effect after "
           "the step");
    }
  }

  const Session& session_;
  std::vector<int64_t> versions_;  // versions of the buffers before the pass
  std::vector<RunningStatistic> dropped_;
  int64_t blocks_ = 0;  // number of blocks that ran and to which memory.recompute applies
  RecomputeBlocks recompute_;
  DividePositions positions_;
  std::optional<DivideSequence> sequence_;
  std::optional<PackSaved> packing_;
  std::optional<OffloadActivations> offload_;
  std::optional<DetectAnomaly> anomalies_;
};

at::Tensor run_in_pass_scope(const Session& s, const Batch& batch, double divisor,
                             StepRandom random, Compute compute, const at::Tensor& loss_scale) {
  const PassScope scope(s);
  return run_micro_batch([&] { return scope.loss(batch, divisor); }, compute, random, loss_scale);
}

}  // namespace

at::Tensor run_micro_batch(const Session& s, const Batch& batch, double divisor,
                           StepRandom random) {
  return run_in_pass_scope(s, batch, divisor, random, s.compute,
                           s.scaler ? s.scaler->scale() : at::Tensor());
}

at::Tensor run_micro_batch(const Session& s, const Batch& batch, double divisor, StepRandom random,
                           Compute compute) {
  return run_in_pass_scope(s, batch, divisor, random, compute, {});
}

Variable run_stage_forward(const Session& s, const Batch& batch, double divisor, StepRandom random,
                           PipelineStage& stage) {
  const PassScope scope(s);
  const MemoryScope memory(Memory::activations);
  const TrainingStep step(random);
  const Autocast autocast(s.compute);
  const NamedRange range([] { return std::string("forward"); });
  mode().stage = &stage;
  try {
    return scope.loss(batch, divisor);
  } catch (const PipelineStage::ForwardIsDone&) {
    return {};
  }
}

void run_stage_backward(const Session& s, const Variable& root, at::Tensor dy, StepRandom random) {
  const PassScope scope(s);
  const MemoryScope memory(Memory::activations);
  const TrainingStep step(random);
  const NamedRange range([] { return std::string("backward"); });
  backward(root, std::move(dy));
}

}  // namespace lathe
