#include "core/kernels/interleave.cuh"

#include <initializer_list>

#include "core/kernels/element.h"
#include "core/kernels/launch.cuh"

namespace lathe {
namespace {

struct alignas(16) Sixteen {
  uint32_t of[4];
};

/// Each thread copies one unit of 16 bytes from the same position of all three matrices. `units` is
/// the number of units in a matrix, and `width` is the number of units in a row.
__global__ void interleave_kernel(ThreeMatrices in, Sixteen* out, int64_t units, int64_t width) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < units;
       i += stride) {
    const int64_t row = i / width;
    Sixteen units_of[3];
    for (int m = 0; m < 3; ++m) units_of[m] = static_cast<const Sixteen*>(in.of[m])[i];
    for (int m = 0; m < 3; ++m) out[i + (2 * row + m) * width] = units_of[m];
  }
}

}  // namespace

cudaError_t interleave_cuda(const ThreeMatrices& in, void* out, int64_t rows, int64_t bytes,
                            cudaStream_t stream) {
  constexpr int64_t unit = sizeof(Sixteen);
  if (bytes % unit != 0) return cudaErrorInvalidValue;
  for (const void* address : {in.of[0], in.of[1], in.of[2], static_cast<const void*>(out)}) {
    if (!is_aligned(address, unit)) return cudaErrorInvalidValue;
  }

  const int64_t width = bytes / unit, units = rows * width;
  if (units == 0) return cudaSuccess;
  constexpr int threads = 256;
  const int64_t grid = (units + threads - 1) / threads;
  launch(interleave_kernel, grid < 65536 ? grid : 65536, threads, stream, in,
         static_cast<Sixteen*>(out), units, width);
  return cudaGetLastError();
}

}  // namespace lathe
