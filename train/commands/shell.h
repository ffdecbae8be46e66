// Generates descriptions of the command line for shells, man and the documentation, from the tables
// of commands and keys.
#pragma once

#include <string>

namespace lathe {

/// Returns the script with which a shell completes commands, flags, keys and their choices. bash
/// loads it with `source <(lathe config completion bash)`. Throws Exit::usage for a shell that is
/// not bash, zsh or fish.
std::string completion_script(const std::string& shell);
/// Returns the manual page lathe(1) in troff.
std::string man_page();
/// Returns the page docs/reference/cli.md: each command with its usage, examples and options.
std::string cli_reference();

}  // namespace lathe
