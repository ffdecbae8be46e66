// Memory of one GPU in a training step: the table of ZeRO (Rajbhandari et al. 2020) for
// parameters, gradients and optimizer state; the formulas of Korthikanti et al. (2022) for
// activations.
#pragma once

#include "train/simulate/hardware.h"
#include "train/simulate/layout.h"

namespace lathe {

/// Bytes of one GPU by category, in the pipeline stage with the largest total.
struct GpuMemory {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< kept for the backward pass, and those of a recomputed layer
  double logits = 0;       ///< with their gradient and float32 copy
  double gathered = 0;     ///< layers that ZeRO 3 gathers, with their gradient
  double reserved = 0;     ///< by the driver and libraries, and lost to fragmentation
  /// Returns the sum.
  double total() const {
    return weights + gradients + optimizer + activations + logits + gathered + reserved;
  }
};

/// How many layers the stages of a pipeline have.
struct LayersPerStage {
  double first = 0, middle = 0, last = 0;
};
/// Divides layers evenly. If that is not possible, counts the embedding and the head as a layer
/// each. If the layers still do not divide evenly, the first stages have more layers than the last
/// one.
LayersPerStage stage_layers(int64_t layers, const ParallelLayout& layout);

/// Returns the bytes of activations that one layer keeps for the backward pass of a micro-batch.
double layer_activations(const StepWorkload& step, const ParallelLayout& layout,
                         const SoftwareModel& software, Recompute recompute);

/// Returns the memory of a GPU.
GpuMemory gpu_memory(const StepWorkload& step, const ParallelLayout& layout, const GpuModel& gpu,
                     const SoftwareModel& software, const SimulatorConstants& constants);

}  // namespace lathe
