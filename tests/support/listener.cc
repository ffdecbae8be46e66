// What happens before the first test case, and before each. Catch2's library has the main.
#include <ATen/Context.h>

#include "core/device.h"
#include "core/kernels/isa.h"
#include "core/memory.h"
#include "tests/support/catch.h"

namespace {

struct Listener : EventListenerBase {
  using EventListenerBase::EventListenerBase;

  /// A GPU, where there is one, takes part in the op table. The fixed thread count keeps figures
  /// comparable between machines.
  void testRunStarting(const Catch::TestRunInfo&) override {
    lathe::read_isa_from_environment();
    lathe::install_allocator();
    lathe::configure_backend(lathe::open_device("auto"), 2, /*tf32=*/false);
  }

  /// Each test case draws the same random numbers in every run, alone or among others. LibTorch's
  /// own seed differs from process to process.
  void testCaseStarting(const Catch::TestCaseInfo&) override { at::manual_seed(1); }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace
