// Declares layouts, which describe how the GPUs of a cluster divide a training step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/simulate/shape.h"

namespace lathe {

/// The parts of a layer that the backward pass computes again: no part; what
/// SoftwareModel::selective names, such as attention (Korthikanti et al. 2022); or the complete
/// layer from its inputs.
enum class Recompute { none, selective, full };

/// Holds the degrees of parallelism and the options of a layout. The product of `data`, `tensor`,
/// `context` and `pipeline` is the number of GPUs. GPUs are numbered with tensor parallelism
/// innermost, followed by context, data and pipeline parallelism (Narayanan et al. 2021).
struct ParallelLayout {
  int64_t data = 1;            ///< replicas, each with a share of the batch
  int64_t shard = 0;           ///< stage of ZeRO among the replicas, 0 to 3
  int64_t tensor = 1;          ///< GPUs that share each matrix product
  int64_t context = 1;         ///< GPUs that share each sequence
  int64_t pipeline = 1;        ///< stages of the pipeline
  int64_t virtual_stages = 1;  ///< parts of each stage (interleaved 1F1B)
  int64_t micro_batch = 1;     ///< sequences that a replica computes together
  Recompute recompute = Recompute::none;

  /// Returns the number of GPUs.
  int64_t gpus() const { return data * tensor * context * pipeline; }
  /// Returns the micro-batches of a step that a replica computes.
  int64_t micro_batches(int64_t global_batch) const { return global_batch / (data * micro_batch); }
  /// Returns the layout in the form that `--layout` takes.
  std::string text() const;
  bool operator==(const ParallelLayout&) const = default;
};

/// Returns the name of a recomputation mode: "none", "selective", "full".
std::string recompute_name(Recompute mode);

/// Holds a layout as the user typed it. The search chooses the values of absent keys.
struct LayoutRequest {
  std::optional<int64_t> data{}, shard{}, tensor{}, context{}, pipeline{}, virtual_stages{};
  std::optional<int64_t> micro_batch{};
  std::optional<Recompute> recompute{};
  /// Returns whether a layout has every value that the user gave.
  bool admits(const ParallelLayout& layout) const;
};

/// Parses "data=8,shard=3,tensor=8"; the keys are data, shard, tensor, context, pipeline, virtual,
/// micro and recompute. Throws Exit::usage for an unknown or repeated key and for a value that is
/// not allowed.
LayoutRequest parse_layout(const std::string& text);
/// Sets `tensor`, `context` and `pipeline` to 1 if they are absent. If `data` is absent, sets it to
/// `gpus` divided by the product of these three degrees. Throws Exit::usage if the product of the
/// four degrees is not `gpus`.
void complete_degrees(LayoutRequest& request, int64_t gpus);

/// Returns the reason why a model can't be divided according to a layout, as one sentence; empty if
/// it can.
std::string layout_fault(const ParallelLayout& layout, const StepWorkload& step);
/// Returns the drawbacks of a layout that works but is probably not intended, one sentence each.
std::vector<std::string> layout_advice(const ParallelLayout& layout, const StepWorkload& step,
                                       int64_t gpus_per_node);
/// Returns why Lathe can't train with the layout; empty if it can. `sequence_parallel`: whether the
/// tensor ranks also divide the positions of rows (dist.sequence_parallel).
std::string lathe_fault(const ParallelLayout& layout, const StepWorkload& step,
                        bool sequence_parallel);

}  // namespace lathe
