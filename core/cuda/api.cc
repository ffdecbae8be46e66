// Implements the functions that liblathe_cuda.so exports to core/device.cc.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <cctype>

#include "core/cuda/linear_product.h"
#include "core/cuda/nccl.h"
#include "core/device.h"
#include "core/error.h"
#include "core/io/text.h"
#include "core/kernels/activation.cuh"
#include "core/kernels/dropout.cuh"
#include "core/kernels/e4m3.cuh"
#include "core/kernels/interleave.cuh"
#include "core/kernels/linear.cuh"
#include "core/kernels/loss.cuh"
#include "core/kernels/norm.cuh"
#include "core/kernels/rotary.cuh"
#include "core/kernels/swiglu.cuh"
#include "core/kernels/update.cuh"

namespace lathe {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(Exit::internal, what, ": ", cudaGetErrorString(status));
}

const cudaDeviceProp& properties() {
  static const cudaDeviceProp all = [] {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
    return p;
  }();
  return all;
}

int device_count() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

std::string device_name() { return properties().name; }

std::string device_id() {
  std::string id;
  for (const char byte : properties().uuid.bytes)
    id += format("%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return id;
}

/// Returns the dense bfloat16 FLOP/s with float32 accumulation, from NVIDIA's data sheets. If
/// several variants of a GPU share an entry of the table, the entry is for the SXM variant. Returns
/// 0 for a GPU that is not in the table.
double peak_bf16_flops() {
  const std::string name = device_name();
  struct KnownGpu {
    const char* name;
    double tflops;
  };
  for (const KnownGpu& gpu :
       {KnownGpu{"H200", 989.5}, KnownGpu{"H100 PCIe", 756.5}, KnownGpu{"H100", 989.5},
        KnownGpu{"A100", 312}, KnownGpu{"B200", 2250}, KnownGpu{"L40S", 362},
        KnownGpu{"RTX 4090", 165.2}, KnownGpu{"RTX 3090", 71}}) {
    if (name.find(gpu.name) != std::string::npos) return 1e12 * gpu.tflops;
  }
  return 0;
}

void synchronize_device() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

/// Returns the statistics of ATen's allocator. Initializes CUDA first, since the statistics are
/// empty before that.
c10::CachingDeviceAllocator::DeviceStats allocator_stats() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0);
}
int64_t memory_free() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const auto stats = allocator_stats();
  return static_cast<int64_t>(free) + stats.reserved_bytes[0].current -
         stats.allocated_bytes[0].current;
}
int64_t memory_used() { return allocator_stats().allocated_bytes[0].current; }
int64_t memory_peak() { return allocator_stats().allocated_bytes[0].peak; }
void reset_memory_peak() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
}

int compute_capability() { return 10 * properties().major + properties().minor; }

int multiprocessors() { return properties().multiProcessorCount; }

void gelu_backward_on_gpu(const void* x, const void* dy, void* dx, Element type, int64_t n) {
  check(gelu_backward_cuda(x, dy, dx, type, n, c10::cuda::getCurrentCUDAStream()), "gelu_backward");
}

void gelu_backward_sums_on_gpu(const void* x, const void* dy, void* dx, Element type, int64_t rows,
                               int64_t columns, float* partials, float* sums) {
  check(gelu_backward_sums_cuda(x, dy, dx, type, rows, columns, partials, sums,
                                c10::cuda::getCurrentCUDAStream()),
        "gelu_backward_sums");
}

bool linear_product(const LinearProduct& product) {
  return linear_product_cuda(product, c10::cuda::getCurrentCUDAStream());
}

void rotate_heads_on_gpu(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                         int64_t width, const float* table, int64_t table_rows, bool back) {
  check(rotate_heads_cuda(x, y, type, rows, heads, width, table, table_rows, back,
                          c10::cuda::getCurrentCUDAStream()),
        "rotate_heads");
}

void swiglu_forward_on_gpu(const void* a, const void* b, void* y, Element type, int64_t rows,
                           int64_t h, int64_t stride) {
  check(swiglu_forward_cuda(a, b, y, type, rows, h, stride, c10::cuda::getCurrentCUDAStream()),
        "swiglu_forward");
}

void swiglu_backward_on_gpu(const void* a, const void* b, const void* dy, void* da, void* db,
                            Element type, int64_t rows, int64_t h, int64_t stride) {
  check(swiglu_backward_cuda(a, b, dy, da, db, type, rows, h, stride,
                             c10::cuda::getCurrentCUDAStream()),
        "swiglu_backward");
}

void norm_forward_on_gpu(const NormRows& n, Matrix x, Matrix y, float eps) {
  check(norm_forward_cuda(n, x, y, eps, c10::cuda::getCurrentCUDAStream()), "norm_forward");
}

void norm_backward_on_gpu(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                          float* partials, float* dweight, float* dbias) {
  check(norm_backward_cuda(n, x, dy, dx, add, partials, dweight, dbias,
                           c10::cuda::getCurrentCUDAStream()),
        "norm_backward");
}

void cross_entropy_on_gpu(Matrix logits, int64_t rows, int64_t classes, const int64_t* targets,
                          int64_t ignore, float weight, bool gradient, float* losses) {
  check(cross_entropy_rows_cuda(logits, rows, classes, targets, ignore, weight, gradient, losses,
                                c10::cuda::getCurrentCUDAStream()),
        "cross_entropy_rows");
}

void dropout(const void* x, void* y, int64_t n, Element type, const DropoutMask& mask) {
  check(dropout_cuda(x, y, n, type, mask, c10::cuda::getCurrentCUDAStream()), "dropout");
}

void interleave(const void* const in[3], void* out, int64_t rows, int64_t bytes) {
  check(
      interleave_cuda({{in[0], in[1], in[2]}}, out, rows, bytes, c10::cuda::getCurrentCUDAStream()),
      "interleave");
}

void sum_columns_on_gpu(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums) {
  check(column_sums_cuda(x, rows, columns, partials, sums, c10::cuda::getCurrentCUDAStream()),
        "column_sums");
}

void add_on_gpu(const void* a, Element a_type, const void* b, Element b_type, void* out,
                int64_t n) {
  check(add_cuda(a, a_type, b, b_type, out, n, c10::cuda::getCurrentCUDAStream()), "add");
}

void scale_on_gpu(const void* x, Element type, const float* factor, void* out, Element out_type,
                  int64_t n) {
  check(scale_cuda(x, type, factor, out, out_type, n, c10::cuda::getCurrentCUDAStream()), "scale");
}

void pack_e4m3_on_gpu(const void* x, Element type, uint8_t* y, float* factors, int64_t rows,
                      int64_t n) {
  check(pack_e4m3_cuda(x, type, y, factors, rows, n, c10::cuda::getCurrentCUDAStream()),
        "pack_e4m3");
}

void unpack_e4m3_on_gpu(const uint8_t* x, const float* factors, void* y, Element type, int64_t rows,
                        int64_t n) {
  check(unpack_e4m3_cuda(x, factors, y, type, rows, n, c10::cuda::getCurrentCUDAStream()),
        "unpack_e4m3");
}

void grad_sum(const GradArgs* grads, int64_t count, double* partials) {
  check(grad_sum_cuda(grads, count, partials, c10::cuda::getCurrentCUDAStream()), "grad_sum");
}

void decide(const StepRequest& request, const double* partials, int64_t n, const float* loss,
            StepControl* control, ScaleState* scale) {
  check(decide_cuda(request, partials, n, loss, control, scale, c10::cuda::getCurrentCUDAStream()),
        "decide");
}

void decide_gradient(const double* partials, int64_t n, StepControl* control) {
  check(decide_gradient_cuda(partials, n, control, c10::cuda::getCurrentCUDAStream()),
        "decide_gradient");
}

void end_stages(int64_t step, const double* partials, int64_t n, const float* loss,
                StepControl* control) {
  check(end_stages_cuda(step, partials, n, loss, control, c10::cuda::getCurrentCUDAStream()),
        "end_stages");
}

void update(const UpdateArgs* args, int64_t count, const UpdateRule& rule, StepControl* control) {
  check(update_cuda(args, count, rule, control, c10::cuda::getCurrentCUDAStream()), "update");
}

}  // namespace
}  // namespace lathe

extern "C" const lathe::CudaApi* lathe_cuda_api() {
  static const lathe::CudaApi api{.device_count = lathe::device_count,
                                  .device_name = lathe::device_name,
                                  .device_id = lathe::device_id,
                                  .peak_bf16_flops = lathe::peak_bf16_flops,
                                  .synchronize = lathe::synchronize_device,
                                  .make_nccl = lathe::nccl_maker,
                                  .memory_free = lathe::memory_free,
                                  .memory_used = lathe::memory_used,
                                  .memory_peak = lathe::memory_peak,
                                  .reset_memory_peak = lathe::reset_memory_peak,
                                  .compute_capability = lathe::compute_capability,
                                  .multiprocessors = lathe::multiprocessors,
                                  .gelu_backward = lathe::gelu_backward_on_gpu,
                                  .gelu_backward_sums = lathe::gelu_backward_sums_on_gpu,
                                  .linear_product = lathe::linear_product,
                                  .rotate_heads = lathe::rotate_heads_on_gpu,
                                  .swiglu_forward = lathe::swiglu_forward_on_gpu,
                                  .swiglu_backward = lathe::swiglu_backward_on_gpu,
                                  .norm_forward = lathe::norm_forward_on_gpu,
                                  .norm_backward = lathe::norm_backward_on_gpu,
                                  .cross_entropy_rows = lathe::cross_entropy_on_gpu,
                                  .dropout = lathe::dropout,
                                  .interleave = lathe::interleave,
                                  .column_sums = lathe::sum_columns_on_gpu,
                                  .add = lathe::add_on_gpu,
                                  .scale = lathe::scale_on_gpu,
                                  .pack_e4m3 = lathe::pack_e4m3_on_gpu,
                                  .unpack_e4m3 = lathe::unpack_e4m3_on_gpu,
                                  .grad_sum = lathe::grad_sum,
                                  .decide = lathe::decide,
                                  .decide_gradient = lathe::decide_gradient,
                                  .end_stages = lathe::end_stages,
                                  .update = lathe::update};
  return &api;
}
