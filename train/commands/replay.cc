#include <iostream>

#include "train/commands/commands.h"
#include "train/loop/replay.h"

namespace lathe {

Command replay_command() {
  return {
      .name = "replay",
      .usage = "RUN|BUNDLE",
      .doc =
          "Rerun the step in which a run diverged, and name the first op whose result or gradient "
          "is not finite.",
      .examples = {"replay runs/quickstart", "replay runs/quickstart/diverged/step-00000120"},
      .flags = {},
      .run = [](const Arguments& a) {
        std::cout << replay(a.positionals[0]) << std::flush;
        return Exit::done;
      }};
}

}  // namespace lathe
