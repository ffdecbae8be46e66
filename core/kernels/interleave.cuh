// Declares interleave_cuda(), which launches a kernel that interleaves the rows of three matrices.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lathe {

/// The addresses of three matrices.
struct ThreeMatrices {
  const void* of[3];
};

/// Writes row i of each of three matrices [rows, `bytes` bytes] one after another as row i of `out`
/// [rows, 3 * bytes]. The matrices are contiguous and in device memory. Their addresses and `bytes`
/// must be multiples of 16; otherwise returns cudaErrorInvalidValue.
cudaError_t interleave_cuda(const ThreeMatrices& in, void* out, int64_t rows, int64_t bytes,
                            cudaStream_t stream);

}  // namespace lathe
