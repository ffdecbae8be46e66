#include <iostream>

#include "core/io/file.h"
#include "train/commands/commands.h"
#include "train/commands/precision.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

Exit run_gradients(const Arguments& arguments) {
  if (arguments.flags.contains("svg")) check_output(arguments, arguments.get("svg", ""), svg_mark);
  const auto batches =
      static_cast<int64_t>(arguments.number("batches", 8, between(1, 100000), true));
  const LoadedModel m = load_model_argument(arguments);
  if (adapters_of(m.config).rank > 0)
    fail(Exit::usage, arguments.positionals[0], " has adapters; merge them first (`lathe merge`)");
  const GradientExponents e = gradient_exponents(m, batches);
  std::cout << exponents_text(e) << std::flush;
  if (arguments.flags.contains("svg"))
    write_file_durably(arguments.get("svg", ""), exponents_svg(e));
  return Exit::done;
}

}  // namespace

Command gradients_command() {
  return {.name = "gradients",
          .usage = "RUN|CHECKPOINT",
          .doc =
              "Show a histogram of the exponents of a model's gradients, and the share of them "
              "that float16 rounds to zero.",
          .examples = {"gradients runs/quickstart --svg gradients.svg",
                       "gradients runs/quickstart --batches 32"},
          .flags = {{"batches", "Run this many training batches. Default: 8."},
                    {"svg", "Write a picture to this file."},
                    device_flag,
                    threads_flag,
                    force_flag},
          .run = run_gradients,
          .switches = {"force"}};
}

}  // namespace lathe
