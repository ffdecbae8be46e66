// Declares functions that prepare and query a run's device (CPU or GPU). CUDA code is in a separate
// library, liblathe_cuda.so, which is loaded only when a run uses a GPU. If the binary were linked
// to this library directly, LibTorch's CUDA libraries would cost a run on a CPU 350 MB of memory
// and up to a second.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

#include "core/kernels/dropout.h"
#include "core/kernels/linear_gpu.h"
#include "core/kernels/norm.h"
#include "core/kernels/update.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lathe {

/// The functions of liblathe_cuda.so. The current device is the first GPU that is visible through
/// CUDA_VISIBLE_DEVICES. Kernels without a comment here are documented in core/kernels/*.cuh. Their
/// names there have the suffix _cuda. All kernels run on the current CUDA stream.
struct CudaApi {
  int (*device_count)();
  std::string (*device_name)();
  std::string (*device_id)();   ///< the UUID of the GPU, which is unique among the GPUs of all
                                ///< machines
  double (*peak_bf16_flops)();  ///< dense bfloat16 FLOP/s of the GPU; 0 if unknown
  void (*synchronize)();
  /// Makes this process a rank of a group that exchanges GPU tensors by NCCL. The ranks connect
  /// through `store` in the first exchange; each request to the store may take `timeout` seconds.
  /// The pointer is null if the library was built without NCCL's header.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, double timeout);
  int64_t (*memory_free)();  ///< bytes that this process can still allocate on the GPU
  int64_t (*memory_used)();  ///< bytes of tensors on the GPU now
  int64_t (*memory_peak)();  ///< peak of memory_used since the start or the last reset
  void (*reset_memory_peak)();
  int (*compute_capability)();  ///< the compute capability, such as 90 for sm_90
  int (*multiprocessors)();
  void (*gelu_backward)(const void* x, const void* dy, void* dx, Element type, int64_t n);
  void (*gelu_backward_sums)(const void* x, const void* dy, void* dx, Element type, int64_t rows,
                             int64_t columns, float* partials, float* sums);
  /// Returns false, and writes nothing, if cuBLASLt has no algorithm for this product.
  bool (*linear_product)(const LinearProduct& product);
  void (*rotate_heads)(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                       int64_t width, const float* table, int64_t table_rows, bool back);
  void (*swiglu_forward)(const void* a, const void* b, void* y, Element type, int64_t rows,
                         int64_t h, int64_t stride);
  void (*swiglu_backward)(const void* a, const void* b, const void* dy, void* da, void* db,
                          Element type, int64_t rows, int64_t h, int64_t stride);
  void (*norm_forward)(const NormRows& n, Matrix x, Matrix y, float eps);
  void (*norm_backward)(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                        float* partials, float* dweight, float* dbias);
  void (*cross_entropy_rows)(Matrix logits, int64_t rows, int64_t classes, const int64_t* targets,
                             int64_t ignore, float weight, bool gradient, float* losses);
  void (*dropout)(const void* x, void* y, int64_t n, Element type, const DropoutMask& mask);
  /// Interleaves the rows of three matrices, as interleave_cuda() in core/kernels/interleave.cuh
  /// does.
  void (*interleave)(const void* const in[3], void* out, int64_t rows, int64_t bytes);
  void (*column_sums)(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums);
  void (*add)(const void* a, Element a_type, const void* b, Element b_type, void* out, int64_t n);
  void (*scale)(const void* x, Element type, const float* factor, void* out, Element out_type,
                int64_t n);
  void (*pack_e4m3)(const void* x, Element type, uint8_t* y, float* factors, int64_t rows,
                    int64_t n);
  void (*unpack_e4m3)(const uint8_t* x, const float* factors, void* y, Element type, int64_t rows,
                      int64_t n);
  void (*grad_sum)(const GradArgs* grads, int64_t count, double* partials);
  void (*decide)(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                 StepControl* control, ScaleState* scale);
  void (*decide_gradient)(const double* partials, int64_t n, StepControl* control);
  void (*end_stages)(int64_t step, const double* partials, int64_t n, const float* loss,
                     StepControl* control);
  void (*update)(const UpdateArgs* args, int64_t count, const UpdateRule& rule,
                 StepControl* control);
};

/// Makes one of the visible GPUs the only GPU that this process sees. The index of this GPU is
/// `local_rank` modulo the number of visible GPUs. Call this function before open_device() in a
/// process that shares its machine with other ranks. Does nothing if there is at most one GPU.
void choose_gpu(int local_rank);
/// Prepares the device that `name` ("auto", "cpu" or "cuda") selects, and returns "cpu" or "cuda".
/// "auto" selects "cuda" if the library, the driver and a GPU are present, and otherwise "cpu".
/// Throws Exit::usage with the reason if "cuda" is requested and not available. Call this function
/// before any other CUDA query of ATen.
std::string open_device(const std::string& name);
/// Returns the loaded CUDA library. Throws unless open_device() has returned "cuda".
const CudaApi& cuda_api();

/// Returns the instruction set that ATen's CPU kernels use: "AVX512", "AVX2", "DEFAULT", ... If
/// Lathe's kernels use a smaller instruction set than the machine has (core/kernels/isa.h), the
/// name of that set is appended: "AVX2 (LATHE_ISA=avx2)".
std::string cpu_isa();
/// Returns the model name of the CPU or the GPU.
std::string device_model(const std::string& device);
/// Waits until the device has finished its work; does nothing on a CPU.
void synchronize(const std::string& device);
/// Returns the number of cores that this process may use. The process's CPU affinity can limit this
/// number.
int usable_cores();
/// Returns a string with one character for each core: '1' if this process may use the core,
/// otherwise '0'. Returns "" if the cores are unknown.
std::string usable_core_set();
/// Sets how many processes share the cores that this process may use. default_threads() divides the
/// number of cores by this number.
void share_cores(int processes);
/// Returns the number of threads for train.threads = 0. This is OMP_NUM_THREADS if that variable is
/// set to a number. Otherwise, it is the number of cores that this process may use, divided by the
/// number of processes that share the cores. Throws as check_threads() does.
int default_threads();
/// Throws Exit::usage if `threads` exceeds the limit: the largest of 64, twice the number of cores
/// that this process may use, and the environment variable LATHE_MAX_THREADS.
void check_threads(int threads);
/// Makes ATen compute on one thread if ATen's default number of threads exceeds the limit of
/// check_threads(), or if that many threads can't be started. Call this function before the first
/// computation. Commands that choose a number of threads call configure_backend() later.
void set_up_default_threads();
/// Sets the number of ATen's threads. For a GPU, also selects deterministic algorithms, and sets
/// whether float32 matmuls and convolutions may use TF32. Throws as check_threads() does, and
/// Exit::memory if that many threads can't be started.
void configure_backend(const std::string& device, int threads, bool tf32);

}  // namespace lathe
