// Adds a custom data kind, task and transform to Lathe's trainer. This program has every command of
// `lathe`, and learns to predict the next number of a series and the uncertainty of the prediction.
//   ./own_task series load.txt --out data/load --window 24
//   ./own_task train series.toml --data.dir=data/load
#include "lathe/train/commands/cli.h"
#include "lathe/train/commands/commands.h"
#include "lathe/train/config/transform.h"
#include "own_task.h"

using namespace lathe;

/// The keys of the transform, which are the section [start] of a config.
struct StartConfig {
  LATHE_FIELD(std::string, zero, "",
              "Pattern of the paths of parameters that start at zero, such as head.*. Empty: none.",
              anything().fixed())
};

int main(int argc, char** argv) {
  // Register everything before run_cli(), which resolves these names when it reads the config.
  add_data_kind({"series", own::open_series});
  add_task(own::make_quantiles());

  add_transform({.name = "start",
                 .doc = "initial values of parameters",
                 .config = AnyConfig::of<StartConfig>(),
                 .apply = [](Model& model, const TransformContext& context) {
                   const std::string& zero =
                       context.config.transforms.at("start").as<StartConfig>().zero;
                   const NoGrad no_grad;
                   for (const NamedParameter& p : parameters(model)) {
                     if (!zero.empty() && matches(zero, p.path)) p.parameter.data().zero_();
                   }
                 }});

  add_command({.name = "series",
               .usage = "FILE --out FOLDER [--window N]",
               .doc = "Prepare data from a text file of numbers: windows of N numbers, each "
                      "with the number that follows the window.",
               .examples = {"series load.txt --out data/load",
                            "series load.txt --out data/load --window 48"},
               .flags = {{"out", "Write the data to this folder. Default: data."},
                         {"window", "Put this many numbers into a window. Default: 24."}},
               .run = [](const Arguments& arguments) {
                 const auto window =
                     arguments.number("window", 24, between(1, 100000), /*whole=*/true);
                 own::prepare_series(arguments.positionals.at(0), arguments.get("out", "data"),
                                     static_cast<int64_t>(window));
                 return Exit::done;
               }});

  return run_cli(argc, argv);
}
