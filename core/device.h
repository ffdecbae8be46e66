// Devices. CUDA code is its own library, liblathe_cuda.so, loaded only when a run asks for CUDA:
// linked directly, LibTorch's CUDA half costs a CPU run 350 MB and up to a second.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernels/dropout.h"
#include "core/kernels/norm.h"
#include "core/kernels/update.h"

namespace lathe {

/// What liblathe_cuda.so gives. The current device is device 0 of those that CUDA_VISIBLE_DEVICES
/// leaves.
struct CudaApi {
  int (*device_count)();
  std::string (*device_name)();
  double (*peak_bf16_flops)();  ///< dense bf16 FLOP/s of the GPU, 0 where unknown
  void (*synchronize)();
  int64_t (*memory_free)();  ///< bytes that this process could still take
  int64_t (*memory_used)();  ///< bytes of tensors on the GPU now
  int64_t (*memory_peak)();  ///< the most there were since the start or the last reset
  void (*reset_memory_peak)();
  int (*compute_capability)();  ///< 90 for sm_90
  int (*multiprocessors)();
  void (*gelu_backward)(const void* x, const void* dy, void* dx, Element type, int64_t n);
  void (*norm_forward)(const NormRows& n, Matrix x, Matrix y, float eps);
  void (*norm_backward)(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                        float* partials, float* dweight, float* dbias);
  void (*cross_entropy_rows)(Matrix logits, int64_t rows, int64_t classes, const int64_t* targets,
                             int64_t ignore, float weight, bool gradient, float* losses);
  void (*dropout)(const void* x, void* y, int64_t n, Element type, const DropoutMask& mask);
  void (*grad_sum)(const GradArgs* grads, int64_t count, double* partials);
  void (*decide)(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                 StepControl* control, ScaleState* scale);
  void (*update)(const UpdateArgs* args, int64_t count, const UpdateRule& rule,
                 StepControl* control);
};

/// Readies "auto", "cpu" or "cuda" and returns which of "cpu" and "cuda" it is. auto takes CUDA
/// where the library, the driver and a GPU are there. Exit::usage with the reason where "cuda" is
/// asked for and can't be had. Call before any other CUDA query of ATen's.
std::string open_device(const std::string& name);
/// The loaded CUDA library; an error before open_device returned "cuda".
const CudaApi& cuda_api();

/// Instruction set that ATen's CPU kernels use: "AVX512", "AVX2", "DEFAULT", ...
std::string cpu_isa();
/// The CPU's or the GPU's model name.
std::string device_model(const std::string& device);
/// Waits for the device to finish; nothing on a CPU.
void synchronize(const std::string& device);
/// Threads for train.threads = 0: OMP_NUM_THREADS where it is set to a number, else the cores this
/// process may use.
int default_threads();
/// Exit::usage where that many threads are more than 64, twice the cores that this process may use,
/// and LATHE_MAX_THREADS.
void check_threads(int threads);
/// Makes ATen compute on one thread where those that it takes by itself can't be started. Call it
/// before anything is computed; configure_backend decides for commands that choose a number.
void set_up_default_threads();
/// Sets ATen's threads, Exit::memory where that many can't be started, what makes a device
/// deterministic, and whether float32 products and convolutions on a GPU may use TF32.
void configure_backend(const std::string& device, int threads, bool tf32);

}  // namespace lathe
