// Declares the entry point of the command line.
#pragma once

namespace lathe {

/// Runs `lathe ARGS...` and returns its exit code. Prints each error as one sentence on standard
/// error.
int run_cli(int argc, char** argv);

}  // namespace lathe
