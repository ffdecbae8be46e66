// A stand-in for CUDA's header of this name, so that tests run .cu files without a GPU. The files
// are compiled as C++. The blocks of a launch run one after another, and the threads of a block are
// fibers that take turns at barriers.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <source_location>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(threads)
// All blocks share one copy of a __shared__ variable. These variables are in a separate section,
// which run() overwrites before each block.
#define __shared__ static __attribute__((section("cuda_shared"), used))

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = struct CUstream_st*;
/// Returns the error of the last launch, and resets it to cudaSuccess.
cudaError_t cudaGetLastError();

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/// Waits for the other threads of the block.
void __syncthreads(std::source_location where = std::source_location::current());

/// Returns the `x` that the thread with index threadIdx.x ^ lane passes. Unlike on a GPU, all
/// threads of the block must call this function, not only the threads of a warp.
inline float __shfl_xor_sync(unsigned, float x, unsigned lane,
                             std::source_location where = std::source_location::current()) {
  static float from[1024];
  from[threadIdx.x] = x;
  __syncthreads(where);
  x = from[threadIdx.x ^ lane];
  __syncthreads(where);
  return x;
}

/// Adds x to *sum and returns the old value. This is atomic, because fibers switch only at
/// barriers.
template <class T>
T atomicAdd(T* sum, T x) {
  const T before = *sum;
  *sum += x;
  return before;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
/// Returns a / b, correctly rounded. A GPU's result is accurate to 2 ulp if |b| is from 2^-126 to
/// 2^126.
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }

namespace lathe {
namespace stand_in {

/// The order in which blocks run. The threads of a block also run in this order up to the next
/// barrier. If a kernel lacks a barrier, at least one of these orders gives a wrong result. For
/// example, with `forward` a thread may read a value that a later thread has not written yet.
enum class Order { forward, backward, shuffled };
extern Order order;
/// The largest number of blocks that a launch runs. A kernel with a grid-stride loop must be
/// correct for any number of blocks.
extern int64_t max_blocks;

/// Runs `thread` for each thread of a launch. Throws Exit::internal if some threads of a block wait
/// at a barrier that other threads of the block don't reach.
void run(int64_t blocks, int threads, const std::function<void()>& thread);

}  // namespace stand_in

/// Replaces launch() of core/kernels/launch.cuh. Checks at compile time what a GPU requires of
/// parameters: they are trivially copyable and have at most 32,764 bytes in total.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t,
            const Args&... args) {
  static_assert((... && std::is_trivially_copyable_v<Parameters>));
  static_assert((0 + ... + sizeof(Parameters)) <= 32764);
  stand_in::run(blocks, threads, [&] { kernel(args...); });
}

}  // namespace lathe
