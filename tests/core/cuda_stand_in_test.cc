// Tests that the stand-in for CUDA, which runs CUDA kernels on the CPU (tests/support/cuda/),
// notices errors of kernels.
#include <bit>

#include "autograd/ops/kernel.h"
#include "core/kernels/launch.cuh"
#include "core/kernels/rules.h"
#include "tests/core/cuda_kernels.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using namespace lathe::test;

__global__ void sum_kernel(const int* x, int* sum, bool first, bool inner) {
  __shared__ int sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  if (first) __syncthreads();
  for (unsigned half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    if (inner) __syncthreads();
  }
  if (threadIdx.x == 0) *sum = sums[0];
}

TEST_CASE("the stand-in gives a wrong sum where a barrier is missing", "[cuda_stand_in]") {
  int x[64], wanted = 0;
  for (int i = 0; i < 64; ++i) wanted += x[i] = i * i + 1;
  const auto right = [&](bool first, bool inner) {
    int n = 0;
    for (const Order order : orders) {
      const ThreadOrder setting(order);
      int sum = 0;
      launch(sum_kernel, 1, 64, nullptr, static_cast<const int*>(x), &sum, first, inner);
      n += sum == wanted;
    }
    return n;
  };
  CHECK(right(true, true) == 3);
  CHECK(right(false, true) < 3);
  CHECK(right(true, false) < 3);
}

__global__ void some_wait_kernel(unsigned waiting) {
  if (threadIdx.x < waiting) __syncthreads();
}

__global__ void wait_apart_kernel(unsigned here) {
  if (threadIdx.x < here) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_CASE("the stand-in reports a barrier that some threads don't reach", "[cuda_stand_in]") {
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (const unsigned n : {0u, 10u}) {  // no error if no thread or every thread waits
      launch(some_wait_kernel, 3, 10, nullptr, n);
      launch(wait_apart_kernel, 3, 10, nullptr, n);
    }
    CHECK_THAT(error_of([] { launch(some_wait_kernel, 3, 10, nullptr, 9u); }),
               ContainsSubstring("9 of 10 threads"));
    CHECK_THAT(error_of([] { launch(wait_apart_kernel, 3, 10, nullptr, 4u); }),
               ContainsSubstring(" of 10 threads"));
  }
}

__global__ void leave_kernel(int* found) {
  __shared__ int left;
  found[blockIdx.x] = left;
  left = 5;
}

TEST_CASE(
    "the stand-in overwrites shared memory before each block, and refuses a grid that a GPU can't "
    "have",
    "[cuda_stand_in]") {
  int found[3] = {};
  launch(leave_kernel, 3, 1, nullptr, &found[0]);
  for (const int f : found) CHECK(f == -1);
  for (const auto& [blocks, threads] :
       std::vector<std::pair<int64_t, int>>{{0, 1}, {1, 0}, {1, 1025}, {1l << 31, 1}}) {
    CHECK(cudaGetLastError() == cudaSuccess);
    launch(leave_kernel, blocks, threads, nullptr, &found[0]);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  }
}

template <class Ours, class Theirs>
int conversions_apart() {
  int apart = 0;
  const auto check = [&](float x) {
    const auto ours = Ours(x).bits;
    apart += x == x ? ours != Theirs(x).x : !std::isnan(float(Ours(x)));
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const float x = std::bit_cast<Ours>(b), y = std::bit_cast<Theirs>(b);
    apart += std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y) &&
             !(std::isnan(x) && std::isnan(y));
    const float next = std::bit_cast<Theirs>(static_cast<uint16_t>(b + 1));
    const float middle = x / 2 + next / 2;  // a tie between two neighbors
    for (const float z :
         {x, middle, std::nextafter(middle, x), std::nextafter(middle, next), x / 3})
      check(z);
  }
  return apart;
}

TEST_CASE("the stand-in's conversions agree with c10's", "[cuda_stand_in]") {
  CHECK(conversions_apart<__half, c10::Half>() == 0);
  CHECK(conversions_apart<__nv_bfloat16, c10::BFloat16>() == 0);
}

}  // namespace
