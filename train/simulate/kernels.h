// Times of kernels on one GPU by the roofline model (Williams et al. 2009): the larger of the times
// of arithmetic and of memory traffic, plus the time to start a kernel. All times are in seconds.
#pragma once

#include <cstdint>

#include "train/simulate/hardware.h"
#include "train/simulate/shape.h"

namespace lathe {

/// A GPU and the software on it.
struct KernelModel {
  const GpuModel& gpu;
  const SoftwareModel& software;
  const SimulatorConstants& constants;

  /// Returns the peak rate of a dtype in FLOP/s. Throws Exit::usage if the GPU lacks fp8.
  double peak(MatmulDtype dtype) const;

  /// Returns the time of `count` products [m, k] x [k, n]. The output is divided into tiles, which
  /// the multiprocessors compute in waves; the last wave may be partly idle. The tile and the
  /// number of parts of the inner size are those that take the least time, as libraries choose
  /// them. The time of fp8 casts is not included.
  double matmul(double m, double n, double k, MatmulDtype dtype, double count = 1) const;

  /// Returns the time of `kernels` kernels that move `bytes` bytes in total and hardly compute.
  double traffic(double bytes, double kernels) const;

  /// Returns the time of the forward or backward pass of attention over `sequences` sequences with
  /// `heads` heads each, of which the GPU computes 1 / `context`. In the backward pass, flash
  /// kernels compute the scores again. Models in fp8 compute attention in bf16. Flash kernels skip
  /// the keys outside a window.
  double attention(const TransformerShape& shape, double sequences, double heads, double context,
                   MatmulDtype dtype, bool backward) const;

 private:
  double unfused_attention(const TransformerShape& shape, double matrices, double context,
                           MatmulDtype dtype, bool backward) const;
};

}  // namespace lathe
