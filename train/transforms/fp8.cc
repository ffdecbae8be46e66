// Implements the fp8 recipe. Its checks run on every device, so a config that a GPU can't run is
// also refused on a CPU.
#include "train/transforms/fp8.h"

#include <algorithm>

#include "amp/amp.h"

namespace lathe {
namespace {

std::string no_blocks(const RunConfig& config) {
  return str("amp.dtype = \"fp8\" needs a model with repeated blocks, but model.kind = \"",
             config.model.kind, "\" has none; use \"bf16\"");
}

bool has_blocks(const std::vector<NamedParameter>& all) {
  return std::ranges::any_of(all, [](const NamedParameter& p) { return p.block >= 0; });
}

}  // namespace

void add_fp8_layers(Model& model, const TransformContext& context) {
  if (context.config.amp.dtype != "fp8") return;
  const auto trained = trained_parameters(model);
  if (!has_blocks(trained)) fail(Exit::usage, no_blocks(context.config));
  make_fp8_layers(trained, context.config.amp);

  for (const NamedParameter& p : trained) {
    const at::Tensor& weight = p.parameter.data();
    const bool is_multiple = weight.dim() != 2 || (weight.size(0) | weight.size(1)) % 16 == 0;
    if (p.parameter.leaf().precision.fp8 == nullptr || is_multiple) continue;
    fail(Exit::usage, "amp.dtype = \"fp8\": ", p.path, " is ", describe(weight),
         ", but fp8 matmuls need sizes that are multiples of 16; change the keys of [model] that "
         "set these sizes, or amp.dtype");
  }
}

std::optional<ConfigFault> check_fp8(const RunConfig& c) {
  if (c.amp.dtype != "fp8") return std::nullopt;
  const auto fault = [](const std::string& key, const auto&... what) {
    return ConfigFault{{key}, str(what...)};
  };

  const int64_t* width = c.model.own.find<int64_t>("n_embd");
  const int64_t* blocks = c.model.own.find<int64_t>("n_layer");
  const std::unique_ptr<Model> shapes = shapes_of(c.model);
  if (width == nullptr || blocks == nullptr || !find_model_kind(c.model.kind)->models_tokens() ||
      (shapes && !has_blocks(parameters(*shapes))))
    return fault("amp.dtype", no_blocks(c));

  // fp8 matmuls on a GPU need sizes that are multiples of 16. This includes the number of rows of a
  // micro-batch, which is the inner dimension of a weight's gradient.
  if (*width % 16 != 0) {
    return fault(
        "model.n_embd", "model.n_embd = ", *width,
        " is not a multiple of 16, which fp8 matmuls need; change model.n_embd or amp.dtype");
  }
  if (units_of_micro_batch(c) % 16 != 0) {
    return fault(
        "train.batch_size", "train.batch_size = ", c.train.batch_size, " times ", window_key(c),
        " = ", batch_sizes(c).block_size,
        " is not a multiple of 16, which fp8 matmuls need; change one of the two or amp.dtype");
  }

  if (2 * c.amp.fp8_edge_blocks >= *blocks) {
    return fault("amp.fp8_edge_blocks", "amp.fp8_edge_blocks = ", c.amp.fp8_edge_blocks,
                 " blocks at each end leave none of the model.n_layer = ", *blocks,
                 " blocks for fp8; lower amp.fp8_edge_blocks");
  }
  return std::nullopt;
}

}  // namespace lathe
