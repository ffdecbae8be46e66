// Computes the memory of one GPU in a training step. Parameters, gradients and optimizer state
// follow the table of ZeRO (Rajbhandari et al. 2020). Activations follow the formulas of
// Korthikanti et al. (2022).
#pragma once

#include "train/simulate/hardware.h"
#include "train/simulate/layout.h"

namespace lathe {

/// Holds the bytes of one GPU by category, in the pipeline stage with the largest total.
struct GpuMemory {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< activations that are kept for the backward pass, and activations of
                           ///< a recomputed layer
  double logits = 0;       ///< logits, with their gradient and float32 copy
  double gathered = 0;     ///< ZeRO 3: the layers that are gathered, and the gradient of one layer;
                           ///< ZeRO 2: the gradient of one layer that is exchanged
  double reserved = 0;     ///< memory that the driver and libraries reserve, or that is lost to
                           ///< fragmentation
  /// Returns the sum of all categories.
  double total() const {
    return weights + gradients + optimizer + activations + logits + gathered + reserved;
  }
};

/// Holds the numbers of layers that the stages of a pipeline have.
struct LayersPerStage {
  double first = 0, middle = 0, last = 0;
};
/// Divides layers evenly. If that is not possible, counts the embedding and the head as one layer
/// each. If the layers still do not divide evenly, the first stages have more layers than the last
/// stage.
LayersPerStage stage_layers(int64_t layers, const ParallelLayout& layout);

/// Returns the bytes of activations that one layer keeps for the backward pass of a micro-batch.
double layer_activations(const StepWorkload& step, const ParallelLayout& layout,
                         const SoftwareModel& software, Recompute recompute);

/// Returns the memory of the GPU with the largest total.
GpuMemory gpu_memory(const StepWorkload& step, const ParallelLayout& layout, const GpuModel& gpu,
                     const SoftwareModel& software, const SimulatorConstants& constants);

}  // namespace lathe
