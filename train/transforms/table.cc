// The table of transforms.
#include <algorithm>

#include "train/config/run_config.h"
#include "train/config/transform.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

struct NoKeys {};

void make_fp8(Model& model, const TransformContext& context) {
  if (context.config.amp.dtype != "fp8") return;
  const auto trained = trained_parameters(model);
  if (std::none_of(trained.begin(), trained.end(), [](const NamedParameter& p) { return p.block >= 0; })) {
    fail(Exit::usage, "amp.dtype = \"fp8\" is for models of repeated blocks, and model.kind = \"",
         context.config.model.kind, "\" has none; use \"bf16\"");
  }
  make_fp8_layers(trained, context.config.amp);
}

std::vector<Transform>& table() {
  static std::vector<Transform> all{
      {"adapters", "low-rank adapters on a frozen model (Hu et al. 2021, \"LoRA\")", AnyConfig::of<AdaptersConfig>(),
       add_adapters, check_adapters},
      {"fp8", "", AnyConfig::of<NoKeys>(), make_fp8},
  };
  return all;
}

}  // namespace

const std::vector<Transform>& transforms() { return table(); }

void add_transform(Transform transform) {
  const bool taken =
      std::any_of(table().begin(), table().end(), [&](const Transform& t) { return t.name == transform.name; });
  LATHE_CHECK(!taken && schema_of<RunConfig>().find(transform.name) == nullptr, "there is a transform or section ",
              transform.name, " already; give yours another name");
  table().push_back(std::move(transform));
}

void apply_transforms(Model& model, const TransformContext& context) {
  for (const Transform& t : transforms()) t.apply(model, context);
}

}  // namespace lathe
