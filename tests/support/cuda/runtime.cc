// Runs the blocks and threads of a launch on one CPU thread; see tests/support/cuda/cuda_runtime.h.
#include "tests/support/cuda/cuda_runtime.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/error.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// The linker's symbols for the start and the end of the section with the __shared__ variables.
extern "C" char __start_cuda_shared[], __stop_cuda_shared[];

namespace lathe::stand_in {

Order order = Order::forward;
int64_t max_blocks = INT32_MAX;

namespace {

constexpr int most_threads = 1024;
constexpr size_t stack_bytes = 128 << 10;  // several times the need of a kernel with 32 KB of
                                           // parameters

struct Fiber {
  ucontext_t context;
  bool done = false;
  std::source_location barrier;  // where the fiber waits
};

cudaError_t last_error = cudaSuccess;
ucontext_t scheduler;
Fiber* current = nullptr;
const std::function<void()>* body = nullptr;
std::mt19937 shuffle(1);

void start() {
  (*body)();
  current->done = true;
}

std::vector<unsigned> sequence(size_t n) {
  std::vector<unsigned> s(n);
  std::iota(s.begin(), s.end(), 0);
  if (order == Order::backward) std::reverse(s.begin(), s.end());
  if (order == Order::shuffled) std::shuffle(s.begin(), s.end(), shuffle);
  return s;
}

void run_block(size_t threads) {
  // Use new[], not a vector, so that stack pages that are never touched take no memory.
  static const std::unique_ptr<char[]> stacks(new char[most_threads * stack_bytes]);

  std::vector<Fiber> fibers(threads);
  for (size_t t = 0; t < threads; ++t) {
    ucontext_t& c = fibers[t].context;
    getcontext(&c);
    c.uc_stack.ss_sp = stacks.get() + t * stack_bytes;
    c.uc_stack.ss_size = stack_bytes;
    c.uc_link = &scheduler;
    makecontext(&c, start, 0);
  }

  // In each round, every thread runs to its next barrier or to its end.
  for (;;) {
    for (const unsigned t : sequence(threads)) {
      current = &fibers[t];
      threadIdx = {t};
      swapcontext(&scheduler, &current->context);
    }

    const auto done =
        std::count_if(fibers.begin(), fibers.end(), [](const Fiber& f) { return f.done; });
    if (done == static_cast<int64_t>(threads)) return;

    // If at least one thread waits, all threads must wait at the same barrier.
    const Fiber& waiting =
        *std::find_if(fibers.begin(), fibers.end(), [](const Fiber& f) { return !f.done; });
    const auto here = std::count_if(fibers.begin(), fibers.end(), [&](const Fiber& f) {
      return !f.done && f.barrier.line() == waiting.barrier.line() &&
             f.barrier.column() == waiting.barrier.column();
    });
    if (here == static_cast<int64_t>(threads)) continue;
    fail(Exit::internal, "block ", blockIdx.x, ": ", here, " of ", threads,
         " threads reach the barrier at ", waiting.barrier.file_name(), ":",
         waiting.barrier.line());
  }
}

}  // namespace

void run(int64_t blocks, int threads, const std::function<void()>& thread) {
  if (blocks < 1 || blocks > INT32_MAX || threads < 1 || threads > most_threads) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  blocks = std::min(blocks, max_blocks);
  body = &thread;
  gridDim = {static_cast<unsigned>(blocks)};
  blockDim = {static_cast<unsigned>(threads)};
  for (const unsigned b : sequence(static_cast<size_t>(blocks))) {
    blockIdx = {b};
    // A float with all bits set is NaN, so a kernel that reads unwritten shared memory gives a NaN.
    std::memset(__start_cuda_shared, 0xff,
                static_cast<size_t>(__stop_cuda_shared - __start_cuda_shared));
    run_block(static_cast<size_t>(threads));
  }
}

}  // namespace lathe::stand_in

cudaError_t cudaGetLastError() { return std::exchange(lathe::stand_in::last_error, cudaSuccess); }

void __syncthreads(std::source_location where) {
  using namespace lathe::stand_in;
  current->barrier = where;
  swapcontext(&current->context, &scheduler);
}
