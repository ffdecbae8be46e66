// A stand-in for CUDA's header of this name, so that tests run .cu files without a GPU: they are
// compiled as C++, the blocks of a launch run one after another, and the threads of a block are
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
// One copy for all blocks, in a section of its own, so that it can be spoiled before each block.
#define __shared__ static __attribute__((section("cuda_shared"), used))

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = struct CUstream_st*;
/// What went wrong since the last call.
cudaError_t cudaGetLastError();

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/// Waits for the other threads of the block.
void __syncthreads(std::source_location where = std::source_location::current());

/// The x of the thread whose place differs by `lane`. Here all threads of the block must come to
/// it, not just the warp's.
inline float __shfl_xor_sync(unsigned, float x, unsigned lane,
                             std::source_location where = std::source_location::current()) {
  static float from[1024];
  from[threadIdx.x] = x;
  __syncthreads(where);
  x = from[threadIdx.x ^ lane];
  __syncthreads(where);
  return x;
}

/// Fibers switch at barriers alone, so nothing comes in between.
template <class T>
T atomicAdd(T* sum, T x) {
  const T before = *sum;
  *sum += x;
  return before;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
/// Exact here; on a GPU to 2 units in the last place, for a divisor below 2^126.
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }

namespace lathe {
namespace stand_in {

/// In which order blocks run, and the threads of a block up to the next barrier. Without a barrier
/// that a kernel needs, one of them gives a wrong result: forward, a thread reads what a later one
/// has not written yet.
enum class Order { forward, backward, shuffled };
extern Order order;
/// A launch gets no more blocks than this. A kernel that strides over its grid must be right with
/// any number.
extern int64_t max_blocks;

/// Exit::internal where some threads of a block stand at a barrier that others don't reach.
void run(int64_t blocks, int threads, const std::function<void()>& thread);

}  // namespace stand_in

/// core/kernels/launch.cuh's, with what a GPU asks of parameters: copied byte by byte, 32,764
/// bytes in all.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t,
            const Args&... args) {
  static_assert((... && std::is_trivially_copyable_v<Parameters>));
  static_assert((0 + ... + sizeof(Parameters)) <= 32764);
  stand_in::run(blocks, threads, [&] { kernel(args...); });
}

}  // namespace lathe
