#include "train/analysis/dry_step.h"

#include <algorithm>
#include <optional>

#include "autograd/pipeline_stage.h"
#include "core/device.h"
#include "core/dry_run.h"
#include "core/error.h"
#include "core/mode.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/analysis/plan_data.h"
#include "train/session/peak.h"
#include "train/step/forward_passes.h"
#include "train/step/shares.h"
#include "train/step/stepper.h"
#include "train/step/update_in_backward.h"

namespace lathe {

int64_t process_overhead_bytes() { return peak_rss_bytes() + (20 << 20); }

DryStep dry_step(const LoadedConfig& given, int ranks) {
  const RunData data = open_for_plan(reduce_for_dry_run(given));
  LoadedConfig loaded = data.loaded;
  loaded.config.train.eval_interval = given.config.train.eval_interval;
  return dry_step(loaded, data, ranks);
}

namespace {

/// Returns the fraction of the trained parameters that this process updates.
double update_share_of(const Session& s) {
  int64_t owned = 0, all = 0;
  for (const ParameterGroup& group : s.optimizer.groups()) {
    for (const Slot& slot : group.slots) {
      owned += slot.own.size();
      all += slot.param.numel();
    }
  }
  return static_cast<double>(owned) / static_cast<double>(all) / world().tensor().size;
}

/// Returns the bytes that this process has sent to the other processes of its replica, for tensor,
/// context and pipeline parallelism.
int64_t sent_within_replica() {
  int64_t bytes = 0;
  if (world().tensor().size > 1) bytes += world().layers().bytes_sent();
  if (world().context().size > 1) bytes += world().contexts().bytes_sent();
  if (world().pipeline().size > 1) bytes += world().stages().bytes_sent();
  return bytes;
}

/// Adds the sizes of the files that memory.offload uses. A save gathers sharded optimizer state, so
/// this function gathers it as well. The dry run then counts the memory that a save needs.
void add_offload(DryStep& result, const Session& s) {
  if (const StateOffload* offload = s.optimizer.offload()) {
    result.scratch_bytes = offload->file_bytes();
    // If the state is sharded, a save gathers one tensor of the state at a time.
    if (s.optimizer.is_sharded()) {
      each_state(s.optimizer, [&](const std::string&, const at::Tensor& t, const StatePart& part) {
        s.optimizer.read_state(t, part);
      });
    }
  }

  if (s.activations) result.scratch_bytes += s.activations->file_bytes();
  if (s.mapped) {
    result.scratch_bytes += s.mapped->bytes();
    result.mapped_bytes = s.pages->resident_bytes();
  }
}

/// Fills in the fields of the result that describe the model, its optimizer and its checkpoints.
void add_facts(DryStep& result, const Session& s) {
  result.parameters = count(parameters(*s.model));
  result.trained = count(s.params);
  for (const NamedParameter& p : s.params) result.blocks = std::max(result.blocks, p.block + 1);

  result.update_flops = s.optimizer.update_flops();
  result.formula_flops = flops_per_unit(s) * static_cast<double>(units_of_micro_batch(s.config));

  const CheckpointBytes bytes =
      checkpoint_bytes(s.params, s.optimizer, save_dtype(s.config.checkpoint));
  result.checkpoint_bytes = bytes.all;
  // A background save copies at most the tensors that this process keeps.
  result.save_copy_bytes = s.config.checkpoint.async_save ? bytes.kept : 0;

  result.has_copies = std::any_of(s.params.begin(), s.params.end(), [](const auto& p) {
    return p.parameter.leaf().precision.low.defined();
  });
}

/// Evaluates one batch.
void evaluate_batch(const Session& s, DummyLoader& batches) {
  const ForwardPasses passes(s);
  const Autocast autocast(s.compute);
  const MemoryScope memory(Memory::activations);
  try {
    s.task.loss(*s.model, batches.next(), static_cast<double>(units_of_micro_batch(s.config)));
  } catch (const PipelineStage::ForwardIsDone&) {
  }
}

/// Allocates the memory that samples, histograms and layer statistics need. For this, gathers
/// sharded parameters. For histograms and layer statistics, also runs a step that keeps its
/// gradients.
void run_with_all_parameters(const RunConfig& given, Session& s, DummyLoader& batches) {
  const bool collects = given.log.layers > 0 || given.log.histograms > 0;
  if (!collects && given.train.sample_interval == 0) return;
  const CompleteParameters complete(s);
  if (!collects) return;
  const auto next = [&] { return batches.next(); };
  run_step(s, next, 0, units_of_step(s.config), /*keep_gradients=*/true);
}

/// Runs the dry steps for one data rank of a pipeline stage. On entry, `between` describes the
/// tensors that the previous stage sends. On return, `between` describes the tensors that this
/// stage sends.
DryStep dry_step_of_stage(const LoadedConfig& given, const RunData& data, int ranks, int stage,
                          std::vector<TensorForm>& between, int data_rank = 0) {
  const LoadedConfig loaded = reduce_for_dry_run(given);
  const bool evaluates = given.config.train.eval_interval > 0;
  const GridSizes sizes = replica_of(loaded.config, ranks);
  const int data_ranks = ranks / sizes.replica();
  std::optional<DryWorld> others;
  if (ranks > 1) others.emplace(ranks, sizes, stage, data_rank).received = between;

  const DryRun dry;
  Session s = Session::make(loaded, *data.task, data.sizes);
  DummyLoader batches(s.config, data.data.get(), static_cast<uint64_t>(s.config.train.seed),
                      s.device);

  DryStep result;
  result.made = memory_stats();
  result.unit = data.task->unit();

  // The FLOPs come from the second step, and the peaks from both steps. The number of partial sums
  // of gradients that a step keeps grows with the logarithm of the number of micro-batches. 64
  // micro-batches are therefore enough to estimate the memory of a step with more micro-batches.
  constexpr int64_t most = 64;
  const int64_t least = s.stage && s.stage->parts() > 1 ? sizes.pipeline : 1;
  const int64_t all = s.config.train.grad_accum;
  const int64_t own = std::max(std::min(all / data_ranks, most) / least, int64_t{1}) * least;
  FlopCount flops;
  int64_t sent_in_replica = 0;
  if (evaluates) evaluate_batch(s, batches);
  for (int64_t step = 0; step < 2; ++step) {
    s.config.train.grad_accum = data_ranks * (step == 0 ? least : own);
    flops = {};
    const int64_t before = sent_within_replica();
    const CountFlops counting(flops);
    run_step(s, [&] { return batches.next(); }, step);
    sent_in_replica = sent_within_replica() - before;
  }
  // Evaluate again after a step, because the gradients of the step are still allocated.
  if (evaluates) evaluate_batch(s, batches);
  run_with_all_parameters(given.config, s, batches);

  add_offload(result, s);

  const auto n = static_cast<double>(own);
  // Divide by the number of micro-batches, because the counts include all micro-batches of a step.
  for (Flops* f : {&flops.forward, &flops.backward}) {
    f->matmul /= n;
    f->other /= n;
  }

  result.micro_batch = flops;
  result.ranks = ranks;
  result.replica = sizes;
  result.stage = stage;
  if (s.stage) {
    for (int part = 0; part < s.stage->parts(); ++part)
      result.own_blocks += s.stage->blocks(part).size();
  }
  if (s.divides_state()) result.largest_owner = s.layout->largest_owner(stage);
  // Each stage waits in total as long as the other stages, one after another, take to compute one
  // of their parts (dist.virtual_stages), forward and backward. The last stage waits for the first
  // micro-batch, and the first stage waits for the gradients of the last one.
  result.bubble =
      s.stage ? static_cast<double>(sizes.pipeline - 1) / static_cast<double>(s.stage->parts()) : 0;
  result.update_share = update_share_of(s);
  for (int rank = 0; rank < world().data().size; ++rank) {
    result.sent_bytes = std::max(
        result.sent_bytes, bytes_sent_in_step(world(), rank, *s.layout, s.local_params(),
                                              s.exchanged, s.config.dist.shard, all / data_ranks));
  }
  result.sent_bytes *= passes_in_step(s.config);
  result.sent_bytes += sent_in_replica * (all / data_ranks) / own;
  result.peaks = memory_stats();
  add_facts(result, s);
  if (others) between = std::move(others->sent);
  return result;
}

}  // namespace

DryStep dry_step_of_this_process(const LoadedConfig& given, const RunData& data) {
  std::vector<TensorForm> between;
  // Run the earlier stages first: each one determines the tensors that the next stage receives.
  for (int stage = 0; stage < world().pipeline().rank; ++stage)
    dry_step_of_stage(given, data, world().size(), stage, between);
  return dry_step_of_stage(given, data, world().size(), world().pipeline().rank, between,
                           world().data().rank);
}

DryStep dry_step(const LoadedConfig& given, const RunData& data, int ranks) {
  const GridSizes sizes = replica_of(given.config, ranks);
  std::vector<TensorForm> between;
  FlopCount whole;
  std::vector<DryStep> processes;
  std::vector<StageForecast> stages;
  for (int stage = 0; stage < sizes.pipeline; ++stage) {
    std::vector<TensorForm> received = between;
    processes.push_back(dry_step_of_stage(given, data, ranks, stage, between));
    whole.forward += processes.back().micro_batch.forward;
    whole.backward += processes.back().micro_batch.backward;
    // If the optimizer updates only complete tensors, one process may own many more elements than
    // another process.
    if (const int largest = processes.back().largest_owner; largest > 0)
      processes.push_back(dry_step_of_stage(given, data, ranks, stage, received, largest));

    if (sizes.pipeline == 1) continue;
    StageForecast& of_stage = stages.emplace_back();
    for (const DryStep& process : processes) {
      if (process.stage != stage) continue;
      of_stage.blocks = process.own_blocks;
      of_stage.flops = process.micro_batch.total();
      of_stage.resident_bytes = std::max(of_stage.resident_bytes, process.resident());
    }
  }

  DryStep result = processes[0];
  for (DryStep& other : processes) {
    if (other.resident() > result.resident()) std::swap(other, result);
    if (other.micro_batch.total() > result.micro_batch.total())
      result.micro_batch = other.micro_batch;
    result.update_share = std::max(result.update_share, other.update_share);
    result.update_flops = std::max(result.update_flops, other.update_flops);
    result.sent_bytes = std::max(result.sent_bytes, other.sent_bytes);
  }

  for (Flops* f : {&whole.forward, &whole.backward})
    f->matmul *= sizes.tensor * sizes.context, f->other *= sizes.tensor * sizes.context;
  result.whole_micro_batch = whole;
  result.stages = std::move(stages);
  return result;
}

}  // namespace lathe
