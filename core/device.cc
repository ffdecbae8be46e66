#include "core/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <sched.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/kernels/isa.h"

namespace lathe {
namespace {

const CudaApi* api = nullptr;

/// Loads the library; returns why it can't be used, or an empty string.
std::string load_cuda() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) return "there is no NVIDIA driver on this machine";
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&open_device), &self);
  const auto library = std::filesystem::path(self.dli_fname).parent_path() / "liblathe_cuda.so";
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return str("liblathe_cuda.so can't be loaded (", dlerror(), "); see \"CUDA\" in README.md");
  using Entry = const CudaApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "lathe_cuda_api"));
  if (entry == nullptr) return "liblathe_cuda.so is of another version; build again";
  if (entry()->device_count() == 0) return "the driver shows no card";
  api = entry();
  return "";
}

}  // namespace

std::string open_device(const std::string& name) {
  if (name == "cpu") return name;
  const std::string problem = api != nullptr ? "" : load_cuda();
  if (problem.empty()) return "cuda";
  if (name == "auto") return "cpu";
  fail(Exit::usage, "train.device = \"cuda\": ", problem, "; or set train.device = \"cpu\"");
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
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

void synchronize(const std::string& device) {
  if (device == "cuda") cuda_api().synchronize();
}

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    int n = 0;
    if (std::from_chars(text, text + std::strlen(text), n).ec == std::errc() && n > 0) return n;
  }
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void set_up_compute(const std::string& device, int threads, bool tf32) {
  at::set_num_threads(threads);
  if (device != "cuda") return;
  // CUBLAS_WORKSPACE_CONFIG, which cuBLAS asks for where it has a workspace of its own, stays unset: ATen gives it one
  // for each stream, and with the variable set ATen parses it anew in each product, which takes 0.2 ms.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(true);
  // Sums in float32 throughout, also where a product is split.
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setFloat32MatmulPrecision(tf32 ? "high" : "highest");
  at::globalContext().setAllowTF32CuDNN(tf32);
}

}  // namespace lathe
