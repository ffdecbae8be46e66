// Launching a kernel. Under nvcc this is CUDA's launch; the tests compile .cu files as C++ over a
// stand-in for CUDA's headers (tests/support/cuda), which brings a launch of its own.
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
