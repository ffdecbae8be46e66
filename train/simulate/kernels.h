// Times of kernels on one GPU by a roofline: the slower of arithmetic and memory traffic, and the
// start of a kernel (Williams et al. 2009). All times in seconds.
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

  /// Returns the peak rate of a dtype in FLOP/s. Throws Exit::usage where the GPU lacks fp8.
  double peak(MatmulDtype dtype) const;

  /// Returns the time of `count` products [m, k] x [k, n]. The output is divided into tiles, which
  /// the multiprocessors compute in waves; the last wave may be partly idle. The tile and the
  /// number of parts of the inner size are those that take the least time, as libraries choose
  /// them. The casts of fp8 are not part of it.
  double matmul(double m, double n, double k, MatmulDtype dtype, double count = 1) const;

  /// Returns the time of kernels that only move so many bytes.
  double traffic(double bytes, double kernels) const;

  /// Returns the time of the attention of `sequences` sequences and `heads` heads, of which each
  /// GPU computes 1 / `context`; forward, or backward with its own recomputation of the scores.
  double attention(const TransformerShape& shape, double sequences, double heads, double context,
                   bool backward) const;

 private:
  double unfused_attention(const TransformerShape& shape, double matrices, double context,
                           bool backward) const;
};

}  // namespace lathe
