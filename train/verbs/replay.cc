#include <iostream>

#include "train/run/replay.h"
#include "train/verbs/verbs.h"

namespace lathe {

Verb replay_verb() {
  return {"replay",
          "RUN|BUNDLE",
          "run the step again in which a run diverged, and name the first op whose result or "
          "gradient is not finite",
          "replay runs/quickstart",
          {},
          false,
          1,
          1,
          [](const Arguments& a) {
            std::cout << replay(a.words[0]) << std::flush;
            return Exit::done;
          }};
}

}  // namespace lathe
