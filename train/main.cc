// LibTorch's destructors take 0.07 s at exit, so the process ends without them.
#include <cstdio>
#include <cstdlib>

#include "train/commands/cli.h"

int main(int argc, char** argv) {
  const int code = lathe::run_cli(argc, argv);
  // Without the destructors of LibTorch's tables: they would take longer than most commands.
  std::fflush(nullptr);
  std::_Exit(code);
}
