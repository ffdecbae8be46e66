// Declares the tables of GPUs, links and training software that the simulator uses, and the
// constants that apply to all GPUs, links and software. A TOML file can extend or override them.
#pragma once

#include <string>
#include <vector>

#include "core/config.h"

namespace lathe {

/// Describes a GPU: its data-sheet rates without sparsity, and the shares of these rates that
/// kernels reach.
struct GpuModel {
  LATHE_FIELD(std::string, name, "", "name on the command line", anything())
  LATHE_FIELD(double, memory_gb, 80.0, "memory that programs can take, 1e9 bytes", above(0, 1e6))
  LATHE_FIELD(double, memory_gb_per_second, 2000.0, "memory bandwidth, 1e9 bytes a second",
              above(0, 1e6))
  LATHE_FIELD(double, bf16_tflops, 312.0,
              "dense bf16 and fp16 rate with fp32 accumulation, 1e12 FLOP/s", above(0, 1e6))
  LATHE_FIELD(double, fp8_tflops, 0.0, "dense fp8 rate, 1e12 FLOP/s; 0: no fp8", between(0, 1e6))
  LATHE_FIELD(double, tf32_tflops, 0.0, "dense TF32 rate, 1e12 FLOP/s; 0: no TF32", between(0, 1e6))
  LATHE_FIELD(double, fp32_tflops, 19.5, "fp32 rate, 1e12 FLOP/s", above(0, 1e6))
  LATHE_FIELD(double, multiprocessors, 108.0, "streaming multiprocessors", between(1, 1e5))
  LATHE_FIELD(double, link_gb_per_second, 300.0,
              "bandwidth of a GPU to its node's other GPUs, in one direction, 1e9 bytes a second",
              above(0, 1e5))
  LATHE_FIELD(double, matmul_share, 0.85,
              "share of the peak rate that large matrix products sustain at the clock that the "
              "power limit leaves",
              above(0, 1))
  LATHE_FIELD(double, portable_share, 1.0,
              "share of the bf16 rate that kernels written for the Ampere instructions can reach",
              above(0, 1))
};

/// Describes a link between nodes.
struct LinkModel {
  LATHE_FIELD(std::string, name, "", "name on the command line", anything())
  LATHE_FIELD(double, gb_per_second, 50.0,
              "bandwidth of one GPU's share in one direction, 1e9 bytes a second", above(0, 1e5))
  LATHE_FIELD(double, latency_us, 14.0, "time of an empty message, microseconds", between(0, 1e6))
};

/// Holds the properties of a training program that affect the time or the memory of a step.
struct SoftwareModel {
  LATHE_FIELD(std::string, name, "", "name on the command line", anything())
  LATHE_FIELD(std::string, attention, "flash2",
              "attention kernel; unfused: the scores are written to memory, and both halves of the "
              "causal mask are computed",
              one_of({"unfused", "flash1", "flash2", "flash3"}))
  LATHE_FIELD(double, elementwise_passes, 1.0,
              "memory traffic of norms, activations and residual sums, over that of fused kernels",
              between(0.1, 100))
  LATHE_FIELD(double, logit_bytes, 16.0,
              "memory traffic of the loss for each logit, forward and backward, bytes",
              between(0, 1000))
  LATHE_FIELD(double, logit_memory_bytes, 6.0,
              "memory of a logit, including the tensors that the loss keeps, bytes",
              between(0, 1000))
  LATHE_FIELD(double, tensor_overlap, 0.0,
              "share of the exchange of tensor parallelism that matrix products hide",
              between(0, 1))
  LATHE_FIELD(double, tensor_bytes, 0.0,
              "bytes of an element that tensor parallelism exchanges; 0: those of the dtype",
              between(0, 8))
  LATHE_FIELD(bool, gradient_overlap, true,
              "gradients are exchanged while the backward pass computes", anything())
  LATHE_FIELD(bool, sequence_parallel, true,
              "tensor parallelism divides norms and residual sums by sequence position", anything())
  LATHE_FIELD(bool, shards_masters, false,
              "ZeRO 3 keeps only the fp32 shards, and casts them for each gather", anything())
  LATHE_FIELD(
      std::string, selective, "attention",
      "what selective recomputation computes again; attention: all of attention; half: every "
      "second matrix product and what lies between them",
      one_of({"attention", "half"}))
  LATHE_FIELD(bool, dropout, false, "dropout masks are kept for the backward pass", anything())
  LATHE_FIELD(double, gradient_bytes, 4.0, "bytes of an element of accumulated gradients",
              between(1, 8))
  LATHE_FIELD(double, exchange_bytes, 4.0, "bytes of an element of exchanged gradients",
              between(1, 8))
};

/// Holds the constants that apply to every GPU, link and program. docs/reference/simulator.md lists
/// the source of each constant.
struct SimulatorConstants {
  LATHE_FIELD(double, memory_share, 0.73, "share of the memory bandwidth that kernels reach",
              above(0, 1))
  LATHE_FIELD(double, fp8_share, 0.85,
              "share of the peak that fp8 matmuls reach, over the share that bf16 matmuls reach",
              above(0, 1))
  LATHE_FIELD(double, matmul_ramp, 250.0,
              "inner size at which start and end of a tile take half of a matrix product's time",
              between(0, 1e5))
  LATHE_FIELD(double, flash1_share, 0.37,
              "share of the portable bf16 rate, with heads of 128 channels", above(0, 1))
  LATHE_FIELD(double, flash2_share, 0.66,
              "share of the portable bf16 rate, with heads of 128 channels", above(0, 1))
  LATHE_FIELD(double, flash3_share, 0.65, "share of the bf16 rate, with heads of 128 channels",
              above(0, 1))
  LATHE_FIELD(double, attention_ramp, 350.0,
              "tokens of a sequence at which attention reaches half of its rate", between(0, 1e5))
  LATHE_FIELD(double, attention_head_ramp, 20.0,
              "channels of a head at which attention reaches half of its rate", between(0, 1e5))
  LATHE_FIELD(double, attention_backward_share, 0.85,
              "rate of the backward pass of attention over that of the forward pass", above(0, 1))
  LATHE_FIELD(double, kernel_us, 3.0, "time of an empty kernel, microseconds", between(0, 1e4))
  LATHE_FIELD(double, node_link_share, 0.78,
              "share of the bandwidth within a node that collectives reach", above(0, 1))
  LATHE_FIELD(double, network_share, 0.80,
              "share of the bandwidth between nodes that collectives reach", above(0, 1))
  LATHE_FIELD(double, node_latency_us, 3.4, "latency of a hop within a node, microseconds",
              between(0, 1e4))
  LATHE_FIELD(double, collective_us, 8.4, "time to start a collective, microseconds",
              between(0, 1e5))
  LATHE_FIELD(double, contention, 0.3,
              "time by which hidden communication slows other kernels, over its own time",
              between(0, 1))
  LATHE_FIELD(double, reserved_gb, 3.0,
              "memory of a GPU that the driver and communication libraries take, 1e9 bytes",
              between(0, 1e3))
  LATHE_FIELD(double, fragmentation, 0.04, "share of a GPU's memory that the allocator loses",
              below(0, 1))
};

/// Holds all tables.
struct HardwareTable {
  std::vector<GpuModel> gpus;
  std::vector<LinkModel> links;
  std::vector<SoftwareModel> software;
  SimulatorConstants constants;

  /// Returns the GPU with this name, ignoring case. Throws Exit::usage with the known names if
  /// there is no such GPU.
  const GpuModel& gpu(const std::string& name) const;
  /// Returns the link with this name. A name "NG" that is not in the table, such as "25G", means a
  /// link with N Gbit/s for each GPU. Throws Exit::usage for any other name.
  LinkModel link(const std::string& name) const;
  /// Returns the software with this name. Throws Exit::usage with the known names if there is no
  /// such software.
  const SoftwareModel& program(const std::string& name) const;
};

/// Returns the built-in tables.
const HardwareTable& known_hardware();
/// Returns the built-in tables with the entries of a TOML file: `[[cluster.gpu]]`,
/// `[[cluster.link]]`, `[[cluster.software]]` and `[constants]`. An entry with a known name changes
/// the given keys. An entry with a new name needs `like = "NAME"`, and changes a copy of the entry
/// NAME. Throws Exit::usage with file:line:column if the file is invalid.
HardwareTable read_hardware(const std::string& path);

}  // namespace lathe
