// Defines the table of transforms, and the functions that use it.
#include <algorithm>
#include <exception>

#include "core/mode.h"
#include "train/config/run_config.h"
#include "train/config/transform.h"
#include "train/transforms/adapters.h"
#include "train/transforms/fp8.h"
#include "train/transforms/tensor_parallel.h"

namespace lathe {
namespace {

struct NoKeys {};

std::vector<Transform>& transform_table() {
  static std::vector<Transform> all{
      {.name = "adapters",
       .doc = "low-rank adapters on a frozen model (Hu et al. 2021, \"LoRA\")",
       .config = AnyConfig::of<AdaptersConfig>(),
       .apply = add_adapters,
       .check = check_adapters,
       .checks_model = false,
       .uses_values = false},
      {.name = "tensor",
       .doc = "",
       .config = AnyConfig::of<NoKeys>(),
       .apply = cut_for_tensor_ranks,
       .check = {},
       .checks_model = false,
       .uses_values = false},
      {.name = "fp8",
       .doc = "",
       .config = AnyConfig::of<NoKeys>(),
       .apply = add_fp8_layers,
       .check = check_fp8,
       .checks_model = true,
       .uses_values = false},
  };
  return all;
}

}  // namespace

std::unique_ptr<Model> shapes_of(const ModelConfig& config) {
  AnyConfig own = config.own;
  if (int64_t* const vocabulary = own.find<int64_t>("vocab_size"))
    *vocabulary = std::max<int64_t>(1, *vocabulary);

  try {
    const MetaInit guard;
    return find_model_kind(config.kind)->make(own, {.input = {3, 32, 32}, .outputs = 2});
  } catch (const std::exception&) {
    return nullptr;
  }
}

const std::vector<Transform>& transforms() { return transform_table(); }

void add_transform(Transform transform) {
  const bool taken = std::any_of(transform_table().begin(), transform_table().end(),
                                 [&](const Transform& t) { return t.name == transform.name; });
  LATHE_CHECK(!taken && schema_of<RunConfig>().find(transform.name) == nullptr,
              "there is a transform or section ", transform.name,
              " already; give your transform another name");
  transform_table().push_back(std::move(transform));
}

void apply_transforms(Model& model, const TransformContext& context) {
  for (const Transform& t : transforms()) t.apply(model, context);
}

std::vector<NamedParameter> parameters_to_train(const Model& model, const RunConfig& config) {
  auto trained = trained_parameters(model);
  if (trained.empty()) {
    fail(Exit::usage, "there is nothing to train: the model of model.kind = \"", config.model.kind,
         "\" has no parameters, or all of them are frozen; leave out the transform that freezes "
         "them");
  }
  return trained;
}

}  // namespace lathe
