#include "core/io/log.h"
#include "train/commands/commands.h"
#include "train/loop/stop.h"
#include "train/loop/trainer.h"

namespace lathe {
namespace {

Exit run_train(const Arguments& arguments) {
  install_stop_handlers("after this step");
  const bool verify_data = arguments.is_true("verify-data");
  const bool force = arguments.is_true("force");
  return train(load_config_argument(arguments), verify_data, force);
}

}  // namespace

Command train_command() {
  return {
      .name = "train",
      .usage = "CONFIG [--section.key=value ...]",
      .doc = "Train the model that a config describes, or resume its run.",
      .examples = {"train configs/quickstart.toml",
                   "train configs/quickstart.toml --train.steps=500 --train.out_dir=runs/short"},
      .flags =
          {{"verify-data", "Read all data first and compare it with its checksums."},
           {"force",
            "Start a run on CPUs even if it needs far more memory, or more disk space for scratch "
            "files, than is free."}},
      .config_keys = true,
      .run = run_train,
      .switches = {"verify-data", "force"}};
}

}  // namespace lathe
