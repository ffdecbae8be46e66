// The entry point of the command line.
#include <cstdio>
#include <cstdlib>

#include "train/commands/cli.h"

int main(int argc, char** argv) {
  const int code = lathe::run_cli(argc, argv);
  // Skip the destructors of LibTorch's tables, which take 0.07 s, longer than most commands.
  std::fflush(nullptr);
  std::_Exit(code);
}
