// Defines launch(), which launches a kernel, for files that nvcc compiles. Tests compile .cu files
// as C++, with stand-ins for CUDA's headers (tests/support/cuda) that define another launch().
#pragma once

#include <cuda_runtime.h>

#ifdef __CUDACC__
namespace lathe {

template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream,
            const Args&... args) {
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(args...);
}

}  // namespace lathe
#endif
