// The command line.
#pragma once

namespace lathe {

/// Runs `lathe ARGS...`; returns the exit code. Everything that goes wrong is one sentence on
/// standard error.
int run_cli(int argc, char** argv);

}  // namespace lathe
