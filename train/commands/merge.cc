#include "core/io/log.h"
#include "train/commands/commands.h"
#include "train/run/stop.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

Exit run_merge(const Arguments& arguments) {
  const fs::path out = arguments.get("out", "");
  if (out.empty()) fail(Exit::usage, "lathe merge needs --out FOLDER");

  install_stop_handlers("the merge");
  const auto stop = [] { return stop_signal() != 0; };
  log_info("merged into ", merge(run_argument(arguments), out, stop).string());
  return Exit::done;
}

}  // namespace

Command merge_command() {
  return {"merge",
          "RUN|CHECKPOINT --out FOLDER",
          "add a run's adapters ([adapters]) into the model under them, as a run of its own",
          "merge runs/adapters --out runs/merged",
          {{"out", "folder for the merged run"}},
          false,
          1,
          1,
          run_merge};
}

}  // namespace lathe
