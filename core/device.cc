// Implements the functions of device.h. open_device() must be called before anything asks ATen
// whether there is a GPU, since ATen caches the answer. This also applies to dry runs.
#include "core/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/io/shipped.h"
#include "core/kernels/isa.h"

namespace lathe {
namespace {

const CudaApi* api = nullptr;

/// Loads liblathe_cuda.so. Returns an empty string, or the reason if the library can't be used.
std::string load_cuda() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return "this machine has no NVIDIA driver";
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&open_device), &self);
  const auto library = std::filesystem::path(self.dli_fname).parent_path() / "liblathe_cuda.so";
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return str("liblathe_cuda.so can't be loaded (", dlerror(), "); see ",
               shipped_file("docs/guide/gpu.md"));
  using Entry = const CudaApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "lathe_cuda_api"));
  if (entry == nullptr) return "liblathe_cuda.so is from another version of Lathe; build it again";
  if (entry()->device_count() == 0) return "the driver finds no GPU";
  api = entry();
  return "";
}

/// Returns the number of GPUs that the driver shows. Asks NVIDIA's management library and not CUDA,
/// since CUDA reads CUDA_VISIBLE_DEVICES only once, and choose_gpu() may still change it.
unsigned gpus_of_driver() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return 0;
  using Start = int (*)();
  using Count = int (*)(unsigned*);
  const auto start = reinterpret_cast<Start>(dlsym(library, "nvmlInit_v2"));
  const auto count = reinterpret_cast<Count>(dlsym(library, "nvmlDeviceGetCount_v2"));
  unsigned n = 0;
  const bool is_known = start != nullptr && count != nullptr && start() == 0 && count(&n) == 0;
  return is_known ? n : 0;
}

}  // namespace

void choose_gpu(int local_rank) {
  std::vector<std::string> visible;
  if (const char* named = std::getenv("CUDA_VISIBLE_DEVICES"); named != nullptr) {
    // CUDA ignores the first entry that does not name a GPU, and all later entries.
    std::istringstream list(named);
    for (std::string gpu; std::getline(list, gpu, ',') && !gpu.empty() && gpu != "-1";)
      visible.push_back(gpu);
  } else {
    for (unsigned i = 0; i < gpus_of_driver(); ++i) visible.push_back(std::to_string(i));
  }
  if (visible.size() < 2) return;
  const std::string& own = visible[static_cast<size_t>(local_rank) % visible.size()];
  setenv("CUDA_VISIBLE_DEVICES", own.c_str(), /*overwrite=*/1);
}

std::string open_device(const std::string& name) {
  if (name == "cpu") return name;
  const std::string problem = api != nullptr ? "" : load_cuda();
  if (problem.empty()) return "cuda";
  if (name == "auto") return "cpu";
  fail(Exit::usage, "the device cuda can't be used: ", problem,
       "; set train.device = \"cpu\", or give --device cpu, to use the CPU");
}

const CudaApi& cuda_api() {
  LATHE_CHECK(api != nullptr, "CUDA was used before open_device");
  return *api;
}

std::string cpu_isa() {
  const bool fewer = active_isa() != machine_isa();
  return at::get_cpu_capability() + (fewer ? str(" (LATHE_ISA=", isa_name(active_isa()), ")") : "");
}

std::string device_model(const std::string& device) {
  if (device == "cuda") return cuda_api().device_name();
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t name = line.find(": ");
    if (line.starts_with("model name") && name != std::string::npos) return line.substr(name + 2);
  }
  return "unknown CPU";
}

void synchronize(const std::string& device) {
  if (device == "cuda") cuda_api().synchronize();
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string usable_core_set() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "";
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) text += CPU_ISSET(core, &set) ? '1' : '0';
  return text;
}

namespace {

int processes_on_cores = 1;

/// Returns the positive integer at the beginning of an environment variable; nullopt if the
/// variable is not set or does not begin with such a number.
std::optional<int> number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  int n = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), n).ec != std::errc() ||
      n <= 0)
    return std::nullopt;
  return n;
}

/// Returns the largest number of threads that check_threads() accepts.
int max_threads() {
  return std::max({64, 2 * usable_cores(), number_in_environment("LATHE_MAX_THREADS").value_or(0)});
}

/// Returns how many threads, up to `wanted`, can be started in addition to the running threads.
/// ATen's thread pools hang if they can't start a thread, so call this function before ATen starts
/// threads.
int startable_threads(int wanted) {
  const auto running = [] {
    std::error_code error;
    return std::distance(std::filesystem::directory_iterator("/proc/self/task", error), {});
  };
  const auto before = running();

  std::latch all_started(1);
  std::vector<std::thread> started;
  try {
    for (int i = 0; i < wanted; ++i) started.emplace_back([&] { all_started.wait(); });
  } catch (const std::system_error&) {  // the limit is reached; `started` has the threads that
                                        // could be started
  }
  all_started.count_down();
  for (std::thread& thread : started) thread.join();

  // The system still counts a thread for a moment after the thread has ended, so wait until the
  // count has dropped.
  for (int i = 0; i < 1000 && running() > before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return static_cast<int>(started.size());
}

/// Returns how many threads ATen starts in order to compute on `threads` threads. ATen has one pool
/// for OpenMP and one for pthreadpool, and the calling thread is part of both.
int pool_threads(int threads) { return 2 * (threads - 1); }

}  // namespace

void share_cores(int processes) { processes_on_cores = processes; }

int default_threads() {
  const int own = std::max(1, usable_cores() / processes_on_cores);
  const int threads = number_in_environment("OMP_NUM_THREADS").value_or(own);
  check_threads(threads);
  return threads;
}

void check_threads(int threads) {
  const int cores = usable_cores(), most = max_threads();
  if (threads <= most) return;
  fail(Exit::usage, threads, " threads are too many for the ", cores,
       cores == 1 ? " core" : " cores", " that this process may use; use at most ", most,
       " (--threads, train.threads or OMP_NUM_THREADS), or set LATHE_MAX_THREADS=", threads,
       " in the environment to allow them");
}

void set_up_default_threads() {
  const int threads = at::get_num_threads();
  if (threads > max_threads() || startable_threads(pool_threads(threads)) < pool_threads(threads))
    at::set_num_threads(1);
}

void configure_backend(const std::string& device, int threads, bool tf32) {
  check_threads(threads);

  // ATen keeps the threads that it has started, so test a number of threads only if it is larger
  // than all previous numbers.
  static int started = 1;
  if (threads > started) {
    const int wanted = pool_threads(threads), startable = startable_threads(wanted);
    if (startable < wanted) {
      fail(Exit::memory, "computing with ", threads, " threads needs ", wanted,
           " more threads, but the system allows only ", startable,
           "; use fewer (--threads, train.threads or OMP_NUM_THREADS), or raise the limit of "
           "processes and threads (ulimit -u, or the container's)");
    }
    started = threads;
  }
  at::set_num_threads(threads);

  if (device != "cuda") return;
  // CUBLAS_WORKSPACE_CONFIG stays unset. cuBLAS requires this variable for deterministic results
  // only if cuBLAS allocates its workspace itself, but ATen provides a workspace for each stream.
  // If the variable were set, ATen would parse it again in each matrix product, which takes 0.2 ms.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(true);
  // Accumulate in float32, even across the parts into which a matrix product is split.
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setFloat32MatmulPrecision(tf32 ? "high" : "highest");
  at::globalContext().setAllowTF32CuDNN(tf32);
}

}  // namespace lathe
