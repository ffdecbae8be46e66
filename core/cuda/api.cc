// What liblathe_cuda.so gives to core/device.cc.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <cctype>

#include "core/device.h"
#include "core/error.h"
#include "core/kernels/dropout.cuh"

namespace lathe {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(Exit::internal, what, ": ", cudaGetErrorString(status));
}

cudaDeviceProp properties() {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
  return p;
}

int device_count() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

std::string device_name() { return properties().name; }

/// Dense bf16 FLOP/s with fp32 accumulation, from NVIDIA's data sheets of the SXM parts where there are several.
double peak_bf16_flops() {
  const std::string name = device_name();
  struct Card {
    const char* name;
    double tflops;
  };
  for (const Card& card : {Card{"H200", 989.5}, Card{"H100 PCIe", 756.5}, Card{"H100", 989.5}, Card{"A100", 312},
                           Card{"B200", 2250}, Card{"L40S", 362}, Card{"RTX 4090", 165.2}, Card{"RTX 3090", 71}}) {
    if (name.find(card.name) != std::string::npos) return 1e12 * card.tflops;
  }
  return 0;
}

void synchronize_device() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

int64_t memory_highest() { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak; }

void dropout(const void* x, void* y, int64_t n, int dtype, const DropoutMask& mask) {
  DropoutType type{};
  switch (static_cast<c10::ScalarType>(dtype)) {
    case c10::kFloat: type = DropoutType::f32; break;
    case c10::kDouble: type = DropoutType::f64; break;
    case c10::kHalf: type = DropoutType::f16; break;
    case c10::kBFloat16: type = DropoutType::bf16; break;
    default: fail(Exit::internal, "dropout: no CUDA kernel for ", c10::toString(static_cast<c10::ScalarType>(dtype)));
  }
  check(dropout_cuda(x, y, n, type, mask, c10::cuda::getCurrentCUDAStream()), "dropout");
}

}  // namespace
}  // namespace lathe

extern "C" const lathe::CudaApi* lathe_cuda_api() {
  static const lathe::CudaApi api{.device_count = lathe::device_count,
                                  .device_name = lathe::device_name,
                                  .peak_bf16_flops = lathe::peak_bf16_flops,
                                  .synchronize = lathe::synchronize_device,
                                  .memory_peak = lathe::memory_highest,
                                  .dropout = lathe::dropout};
  return &api;
}
