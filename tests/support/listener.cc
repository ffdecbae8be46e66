// Prepares the process before the first test case, and seeds random numbers before each test case.
// Catch2's library has main().
#include <ATen/Context.h>

#include "core/device.h"
#include "core/kernels/isa.h"
#include "core/memory.h"
#include "tests/support/catch.h"

namespace {

struct Listener : EventListenerBase {
  using EventListenerBase::EventListenerBase;

  /// Opens the GPU, if there is one, for the tests of the op table. The fixed thread count keeps
  /// results comparable between machines.
  void testRunStarting(const Catch::TestRunInfo&) override {
    lathe::read_isa_from_environment();
    lathe::install_allocator();
    lathe::configure_backend(lathe::open_device("auto"), 2, /*tf32=*/false);
  }

  /// Sets the seed, so that a test case draws the same random numbers whether it runs alone or
  /// after others. Without this seed, LibTorch would choose another seed in each process.
  void testCaseStarting(const Catch::TestCaseInfo&) override { at::manual_seed(1); }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace
