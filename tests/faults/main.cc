// lathe with faults, for the kill trials.
//   LATHE_TEST_KILL="POINT N"  SIGKILL the N-th time the process comes to a fault point
//   LATHE_TEST_RNG_SHIFT=1     dropout draws from the next step: what a wrong resume would do
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "core/io/file.h"
#include "train/cli.h"
#include "train/session.h"

namespace {

std::string point;
int left = 0;

void on_point(const char* name) {
  if (point == name && --left == 0) raise(SIGKILL);
}

}  // namespace

// Stands in front of the library's own function (symbol interposition), so that the library needs no switch for this.
at::Tensor lathe::run_micro_batch(const GPT& model, const Batch& batch, double divisor, Compute compute,
                                  StepRandom random, const at::Tensor& loss_scale) {
  using Function = at::Tensor (*)(const GPT&, const Batch&, double, Compute, StepRandom, const at::Tensor&);
  static const auto original = reinterpret_cast<Function>(
      dlsym(RTLD_NEXT, "_ZN5lathe15run_micro_batchERKNS_3GPTERKNS_5BatchEdNS_7ComputeENS_10StepRandomERKN2at6TensorE"));
  static const bool shifted = std::getenv("LATHE_TEST_RNG_SHIFT") != nullptr;
  random.step += shifted ? 1 : 0;
  return original(model, batch, divisor, compute, random, loss_scale);
}

int main(int argc, char** argv) {
  if (const char* kill = std::getenv("LATHE_TEST_KILL")) {
    const std::string text = kill;
    point = text.substr(0, text.rfind(' '));
    left = std::atoi(text.c_str() + text.rfind(' '));
    lathe::fault_hook = on_point;
  }
  return lathe::run_cli(argc, argv);
}
