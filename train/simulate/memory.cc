#include "train/simulate/memory.h"

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

/// Returns the number of tokens of a micro-batch that one GPU has.
double local_tokens(const StepWorkload& step, const ParallelLayout& l) {
  return as_double(l.micro_batch) * as_double(step.shape.sequence) / as_double(l.context);
}

/// Returns the memory of a stage with `layers` layers, `others` parameters outside of layers, and
/// the activations of `in_flight` micro-batches.
GpuMemory stage_memory(const StepWorkload& step, const ParallelLayout& l,
                       const SoftwareModel& software, double layers, double others,
                       double in_flight) {
  const double e = step.element_bytes(), tensor = as_double(l.tensor);
  const double layer = step.shape.layer_parameters() / tensor;
  const double own = layers * layer + others / tensor;

  // In a pipeline, stages 2 and 3 of ZeRO exchange once in a step, and keep the same memory as
  // stage 1.
  const int64_t stage = l.pipeline > 1 ? std::min<int64_t>(l.shard, 1) : l.shard;
  const double group = as_double(l.data * l.context);
  const auto shared = [&](int64_t from, double bytes) {
    return stage >= from ? bytes / group : bytes;
  };

  GpuMemory m;
  // If ZeRO 3 shards only the masters, matmuls use the gathered weights.
  m.weights = stage == 3 && software.shards_masters && step.has_master() && group > 1
                  ? 0
                  : shared(3, own * e);
  m.gradients = shared(2, own * software.gradient_bytes);
  m.optimizer = shared(1, own * ((step.has_master() ? 4 : 0) + step.state_bytes));

  // ZeRO 3 gathers a layer and the next layer, and keeps the gradient of one layer.
  if (stage == 3 && group > 1) m.gathered = layer * (2 * e + software.exchange_bytes);
  if (stage == 2 && group > 1) m.gathered = layer * software.exchange_bytes;

  m.activations = in_flight * layers * layer_activations(step, l, software, l.recompute);
  if (l.recompute == Recompute::full)
    m.activations += layer_activations(step, l, software, Recompute::none);
  return m;
}

}  // namespace

LayersPerStage stage_layers(int64_t layers, const ParallelLayout& l) {
  const int64_t parts = l.pipeline * l.virtual_stages;
  if (layers % parts == 0) {
    const double each = as_double(layers / l.pipeline);
    return {.first = each, .middle = each, .last = each};
  }
  if ((layers + 2) % parts == 0) {
    const double each = as_double((layers + 2) / l.pipeline);
    return {.first = each - 1, .middle = each, .last = each - 1};
  }
  const double each = as_double((layers + parts - 1) / parts * l.virtual_stages);
  return {.first = each,
          .middle = each,
          .last = std::max(0.0, as_double(layers) - each * as_double(l.pipeline - 1))};
}

double layer_activations(const StepWorkload& step, const ParallelLayout& l,
                         const SoftwareModel& software, Recompute recompute) {
  const TransformerShape& s = step.shape;
  const double e = step.element_bytes(), tensor = as_double(l.tensor), c = as_double(s.width);
  const double tokens = local_tokens(step, l), d = as_double(s.head_width);
  const double queries = as_double(s.heads) * d, keys = as_double(s.kv_heads) * d;
  const double hidden = as_double(s.hidden);
  // In fp8, linear layers keep their inputs in fp8.
  const double input = step.dtype == MatmulDtype::fp8 ? 1 : e;
  const bool is_fused = software.attention != "unfused";

  // Count the inputs and outputs of norms, and a byte for each element of a dropout mask.
  const double sequence_share = software.sequence_parallel ? tensor : 1;
  if (recompute == Recompute::full) return tokens * e * c / sequence_share;
  const bool is_selective = recompute == Recompute::selective;
  const bool keeps_half = is_selective && software.selective == "half";
  const double normed = keeps_half ? 0 : 2 * input * c;
  const double residual =
      tokens * (2 * e * c + normed + (software.dropout ? 2 * c : 0)) / sequence_share;

  // Count Q, K, V, the output of attention, and the feed-forward part before and after its
  // activation. Attention and the layer after it share one copy of attention's output, unless they
  // keep it in different dtypes.
  const double products = queries + 2 * keys + (s.gated ? 2 : 1) * hidden;
  const double attended = queries * (input < e ? e + input : e);
  const double inner = attended + (keeps_half ? e * products / 2 : e * products + input * hidden);

  // Count the output of the softmax and, with dropout, the mask and the output of dropout: the term
  // 5 a s / h of Korthikanti et al.
  const double scores = is_fused || is_selective
                            ? 0
                            : tokens * as_double(s.sequence) * as_double(s.heads) *
                                  (software.dropout ? 2 * e + 1 : e);
  return residual + (tokens * inner + scores) / tensor;
}

GpuMemory gpu_memory(const StepWorkload& step, const ParallelLayout& l, const GpuModel& gpu,
                     const SoftwareModel& software, const SimulatorConstants& constants) {
  const TransformerShape& s = step.shape;
  const double table = as_double(s.vocab) * as_double(s.width);
  const double outside = s.parameters() - as_double(s.layers) * s.layer_parameters();
  const double positions = as_double(s.positions) * as_double(s.width);
  const double micro_batches = as_double(l.micro_batches(step.global_batch));
  const LayersPerStage layers = stage_layers(s.layers, l);

  // The first stage has the most micro-batches in progress. The last stage has the logits.
  const double stages = as_double(l.pipeline), v = as_double(l.virtual_stages);
  const double warm_up = l.virtual_stages > 1 ? 1 + (stages - 1) / (stages * v) : 1;
  const double in_flight = std::min(micro_batches, stages * warm_up);
  const double logits = local_tokens(step, l) * as_double(s.vocab) / as_double(l.tensor) *
                        software.logit_memory_bytes;

  GpuMemory most;
  if (l.pipeline == 1) {
    most = stage_memory(step, l, software, layers.first, outside, 1);
    most.logits = logits;
  } else {
    most = stage_memory(step, l, software, layers.first, table + positions, in_flight);
    GpuMemory last = stage_memory(step, l, software, layers.last, table, 1);
    last.logits = logits;
    const GpuMemory middle = l.pipeline > 2
                                 ? stage_memory(step, l, software, layers.middle, 0,
                                                std::max(1.0, in_flight - in_flight / stages))
                                 : GpuMemory{};
    if (last.total() > most.total()) most = last;
    if (middle.total() > most.total()) most = middle;
  }
  most.reserved = constants.reserved_gb * 1e9 + constants.fragmentation * gpu.memory_gb * 1e9;
  return most;
}

}  // namespace lathe
