// The test runner's main. A card, where there is one, takes part in the op table. The fixed thread count keeps figures
// comparable between machines.
#define CATCH_CONFIG_RUNNER
#include "core/device.h"
#include "core/memory.h"
#include "tests/catch.h"

int main(int argc, char** argv) {
  lathe::install_allocator();
  lathe::set_up_compute(lathe::open_device("auto"), 2, /*tf32=*/false);
  return Catch::Session().run(argc, argv);
}
