// The test runner's main. The fixed thread count keeps figures comparable between machines.
#define CATCH_CONFIG_RUNNER
#include "core/device.h"
#include "core/memory.h"
#include "tests/catch.h"

int main(int argc, char** argv) {
  lathe::install_allocator();
  lathe::set_up_compute("cpu", 2);
  return Catch::Session().run(argc, argv);
}
