#include "core/io/log.h"
#include "train/commands/commands.h"
#include "train/loop/stop.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

Exit run_merge(const Arguments& arguments) {
  const fs::path out = arguments.get("out", "");
  if (out.empty()) fail(Exit::usage, "lathe merge needs --out FOLDER");
  const bool average = wants_ema(arguments);

  install_stop_handlers("the merge");
  const auto stop = [] { return stop_signal() != 0; };
  log_info("merged into ", merge(run_argument(arguments), out, average, stop).string());
  return Exit::done;
}

}  // namespace

Command merge_command() {
  return {.name = "merge",
          .usage = "RUN|CHECKPOINT --out FOLDER",
          .doc =
              "Merge a run's low-rank adapters into their base model, or merge the files that "
              "several processes wrote for a checkpoint, and write the result as a new run.",
          .examples = {"merge runs/adapters --out runs/merged",
                       "merge runs/adapters/checkpoints/step-00000500 --out runs/merged-500"},
          .flags = {{"out", "Write the merged run to this folder."}, weights_flag},
          .run = run_merge};
}

}  // namespace lathe
