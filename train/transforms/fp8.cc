// The checks run on every device, so a config that runs on a CPU also runs on a GPU.
#include "train/transforms/fp8.h"

#include <algorithm>

#include "amp/amp.h"

namespace lathe {
namespace {

std::string no_blocks(const RunConfig& config) {
  return str("amp.dtype = \"fp8\" is for models of repeated blocks, and model.kind = \"",
             config.model.kind, "\" has none; use \"bf16\"");
}

}  // namespace

void add_fp8_layers(Model& model, const TransformContext& context) {
  if (context.config.amp.dtype != "fp8") return;
  const auto trained = trained_parameters(model);
  if (std::none_of(trained.begin(), trained.end(),
                   [](const NamedParameter& p) { return p.block >= 0; }))
    fail(Exit::usage, no_blocks(context.config));
  make_fp8_layers(trained, context.config.amp);
}

std::optional<ConfigFault> check_fp8(const RunConfig& c) {
  if (c.amp.dtype != "fp8") return std::nullopt;
  const auto fault = [](const std::string& key, const auto&... what) {
    return ConfigFault{{key}, str(what...)};
  };

  const int64_t* width = c.model.own.find<int64_t>("n_embd");
  const int64_t* blocks = c.model.own.find<int64_t>("n_layer");
  if (width == nullptr || blocks == nullptr || !find_model_kind(c.model.kind)->models_tokens())
    return fault("amp.dtype", no_blocks(c));

  // fp8 matmuls on a GPU need multiples of 16. The rows of a micro-batch count, too: they are the
  // inner dimension in the gradient of a weight.
  if (*width % 16 != 0) {
    return fault("model.n_embd", "model.n_embd = ", *width,
                 " is not a multiple of 16, which fp8 matmuls need; change it or amp.dtype");
  }
  if (units_of_micro_batch(c) % 16 != 0) {
    return fault(
        "train.batch_size", "train.batch_size = ", c.train.batch_size, " times ", window_key(c),
        " = ", batch_sizes(c).block_size,
        " is not a multiple of 16, which fp8 matmuls need; change one of them or amp.dtype");
  }

  if (2 * c.amp.fp8_edge_blocks >= *blocks) {
    return fault("amp.fp8_edge_blocks", "amp.fp8_edge_blocks = ", c.amp.fp8_edge_blocks,
                 " first and last blocks leave none of model.n_layer = ", *blocks,
                 " to fp8; lower it");
  }
  return std::nullopt;
}

}  // namespace lathe
