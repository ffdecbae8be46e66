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
  return {"train",
          "CONFIG [--section.key=value ...]",
          "Train the model that a config describes, or resume its run.",
          {"train configs/quickstart.toml",
           "train configs/quickstart.toml --train.steps=500 --train.out_dir=runs/short"},
          {{"verify-data", "Read all data first and compare it with its checksums."},
           {"force",
            "Start a run on CPUs that needs far more memory, or disk for scratch files, than is "
            "free."}},
          true,
          1,
          1,
          run_train,
          {"verify-data", "force"}};
}

}  // namespace lathe
