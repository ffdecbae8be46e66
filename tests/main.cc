// The test runner's main. A card, where there is one, takes part in the op table. The fixed thread count keeps figures
// comparable between machines.
#define CATCH_CONFIG_RUNNER
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::EventListenerBase;
#else
#include <catch2/catch.hpp>
using EventListenerBase = Catch::TestEventListenerBase;
#endif

#include <ATen/Context.h>

#include "core/device.h"
#include "core/kernels/isa.h"
#include "core/memory.h"

namespace {

/// Each test case draws the same random numbers in every run, alone or among others. LibTorch's own seed differs from
/// process to process.
struct SeedEachCase : EventListenerBase {
  using EventListenerBase::EventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo&) override { at::manual_seed(1); }
};
CATCH_REGISTER_LISTENER(SeedEachCase)

}  // namespace

int main(int argc, char** argv) {
  lathe::read_isa_from_environment();
  lathe::install_allocator();
  lathe::set_up_compute(lathe::open_device("auto"), 2, /*tf32=*/false);
  return Catch::Session().run(argc, argv);
}
