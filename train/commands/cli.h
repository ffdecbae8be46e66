// The entry point of the command line.
#pragma once

namespace lathe {

/// Runs `lathe ARGS...` and returns the exit code. Every error is one sentence on standard error.
int run_cli(int argc, char** argv);

}  // namespace lathe
