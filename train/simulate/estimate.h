// Declares the simulator, which computes memory, communication and time of a training step on a
// cluster from the shape of the model, the layout and the tables of hardware.
// docs/reference/simulator.md states the formulas.
#pragma once

#include <string>

#include "train/simulate/hardware.h"
#include "train/simulate/layout.h"
#include "train/simulate/memory.h"

namespace lathe {

/// Describes a cluster and the software on it.
struct ClusterModel {
  GpuModel gpu{};
  LinkModel link{};
  SoftwareModel software{};
  SimulatorConstants constants{};
  int64_t nodes = 1, gpus_per_node = 8;
  /// Returns the number of GPUs.
  int64_t gpus() const { return nodes * gpus_per_node; }
};

/// Holds the communication of one kind in a step.
struct Exchange {
  double bytes = 0;    ///< bytes that a GPU sends in a step
  double seconds = 0;  ///< seconds that the exchange takes
  double exposed = 0;  ///< seconds by which the exchange makes the step longer
};

/// The memory, communication and time of a step. Times are in seconds, for a complete step on the
/// slowest stage.
struct StepEstimate {
  GpuMemory memory{};
  double memory_bytes = 0;  ///< bytes of memory of a GPU
  double matmul = 0, attention = 0, elementwise = 0, optimizer = 0;
  double recompute = 0;  ///< seconds of recomputation, which matmul, attention and elementwise do
                         ///< not include
  double bubble = 0;  ///< seconds of waiting for the first and the last micro-batch of the pipeline
  Exchange data{}, tensor{}, context{}, pipeline{};
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;  ///< FLOP/s according to flops_per_token(), divided by the peak of all GPUs in
                   ///< the step's dtype

  /// Returns whether the memory of a GPU is enough.
  bool fits() const { return memory.total() <= memory_bytes; }
};

/// Estimates a step. layout_fault() of the layout must be empty. Throws Exit::usage if the step
/// uses fp8 and the GPU has no fp8 rate.
StepEstimate estimate_step(const ClusterModel& cluster, const StepWorkload& step,
                           const ParallelLayout& layout);

}  // namespace lathe
