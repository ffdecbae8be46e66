// Implements the functions of nccl.h. This is the only file that includes c10d's NCCL backend.
// ProcessGroupNCCL.hpp is empty unless USE_C10D_NCCL is defined.
#define USE_C10D_NCCL
#include "core/cuda/nccl.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

// c10d's options contain a struct of NCCL, so NCCL's header must have the version with which
// LibTorch 2.11 was built.
#if defined(NCCL_VERSION_CODE) && NCCL_MAJOR == 2 && NCCL_MINOR == 28
#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/timing.h"

namespace lathe {
namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, double timeout) {
  // By default, threads of c10d end the process if an exchange fails or takes too long. Lathe waits
  // for each exchange itself, and finds out which rank was lost.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
  // Several groups may exchange at the same time, from several threads.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);

  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = milliseconds(timeout);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace

decltype(CudaApi::make_nccl) const nccl_maker = make_nccl;

}  // namespace lathe

#else

namespace lathe {
decltype(CudaApi::make_nccl) const nccl_maker = nullptr;
}

#endif
