// Computes times of kernels on one GPU by the roofline model (Williams et al. 2009). The time of a
// kernel is the time of its arithmetic or of its memory traffic, whichever is larger, plus the time
// to start the kernel. All times are in seconds.
#pragma once

#include <cstdint>

#include "train/simulate/hardware.h"
#include "train/simulate/shape.h"

namespace lathe {

/// Describes a GPU and the software on it.
struct KernelModel {
  const GpuModel& gpu;
  const SoftwareModel& software;
  const SimulatorConstants& constants;

  /// Returns the peak rate of a dtype in FLOP/s. Throws Exit::usage if the dtype is fp8 and the GPU
  /// has no fp8 rate.
  double peak(MatmulDtype dtype) const;

  /// Returns the time of `count` matrix products [m, k] x [k, n]. The output is divided into tiles,
  /// which the multiprocessors compute in waves; the last wave may be partly idle. As a library of
  /// matmul kernels does, this function chooses the tile size and the number of parts of k that
  /// take the least time. The time of fp8 casts is not included.
  double matmul(double m, double n, double k, MatmulDtype dtype, double count = 1) const;

  /// Returns the time of `kernels` kernels that move `bytes` bytes in total and do little
  /// arithmetic.
  double traffic(double bytes, double kernels) const;

  /// Returns the time of the forward or backward pass of attention over `sequences` sequences with
  /// `heads` heads each. The GPU computes 1 / `context` of the attention. In the backward pass,
  /// flash kernels compute the scores again. Models in fp8 compute attention in bf16. Flash kernels
  /// skip the keys outside a window, and their arithmetic is assumed to take longer than their
  /// memory traffic.
  double attention(const TransformerShape& shape, double sequences, double heads, double context,
                   MatmulDtype dtype, bool backward) const;

 private:
  double unfused_attention(const TransformerShape& shape, double matrices, double context,
                           MatmulDtype dtype, bool backward) const;
};

}  // namespace lathe
