#include "train/session/stages.h"

#include <algorithm>
#include <numeric>

#include "autograd/tensor_cut.h"
#include "core/error.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/session/session.h"

namespace lathe {
namespace {

/// The training FLOPs of a token or sample in each block, and in the head, which runs after them.
struct BlockCosts {
  std::vector<double> blocks;
  double head = 0;
};

/// Counts the FLOPs of matrix products by the number of parameters. Divides the remaining FLOPs of
/// the model's formula, which are those of attention, equally among the blocks. The formula counts
/// the complete attention mask, of which the kernels compute half.
BlockCosts block_costs(const RunConfig& config, const Model& model, const ModelSizes& sizes) {
  const std::vector<NamedParameter> all = parameters(model);
  BlockCosts costs;
  for (const NamedParameter& p : all) {
    if (p.block < 0) continue;
    costs.blocks.resize(std::max(costs.blocks.size(), static_cast<size_t>(p.block) + 1));
    costs.blocks[static_cast<size_t>(p.block)] += matmul_flops({p});
  }

  const double attention = (flops_per_unit(config, model, sizes) - matmul_flops(all)) / 2;
  for (double& cost : costs.blocks)
    cost += std::max(attention, 0.0) / static_cast<double>(costs.blocks.size());

  // The weight of a tied head has the role of an embedding, so matmul_flops() does not count it.
  if (model.has_head()) {
    const Variable& weight = model.head_weight();
    costs.head = (is_trained(weight) ? 6.0 : 4.0) * static_cast<double>(full_numel(weight));
  }
  return costs;
}

/// Returns cuts as cut_into_stages() does, with the numbers of blocks in dist.stage_blocks.
std::vector<int64_t> given_cuts(const LoadedConfig& loaded, int64_t parts, int64_t blocks) {
  const std::string& key = loaded.config.dist.stage_blocks;
  const std::vector<int64_t> counts = *parse_stage_blocks(key);
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (std::ssize(counts) != parts || sum != blocks) {
    fail(Exit::usage, origin_of(loaded, "dist.stage_blocks"), ": dist.stage_blocks = \"", key,
         "\" gives ", sum, " blocks to ", counts.size(), counts.size() == 1 ? " part" : " parts",
         ", but the model has ", blocks, " blocks, and dist.pipeline times dist.virtual_stages is ",
         parts, "; give ", parts, " numbers whose sum is ", blocks, ", or set it to \"auto\"");
  }

  std::vector<int64_t> cuts{0};
  for (const int64_t count : counts) cuts.push_back(cuts.back() + count);
  return cuts;
}

}  // namespace

std::unique_ptr<StageParameters> make_stage(const LoadedConfig& loaded, const Model& model,
                                            const ModelSizes& sizes,
                                            const std::vector<NamedParameter>& trained) {
  const int stages = world().pipeline().size;
  if (stages == 1) return nullptr;
  const auto refuse = [&](const auto&... why) {
    fail(Exit::usage, origin_of(loaded, "dist.pipeline"), ": dist.pipeline = ", stages, " ",
         why...);
  };

  const BlockCosts costs = block_costs(loaded.config, model, sizes);
  const auto blocks = std::ssize(costs.blocks);
  const int64_t parts = stages * loaded.config.dist.virtual_stages;
  if (blocks < parts) {
    const std::string product =
        str("times dist.virtual_stages = ", loaded.config.dist.virtual_stages, " is ", parts, ", ");
    refuse(parts > stages ? product : "is ", "more than the ", blocks,
           " blocks of this model (see run_blocks() in autograd/recompute.h); lower ",
           parts > stages ? "one of the two" : "dist.pipeline");
  }
  if (parts > stages && loaded.frozen_model) {
    refuse("times dist.virtual_stages = ", loaded.config.dist.virtual_stages,
           " would run the frozen model of the task for each part; set dist.virtual_stages to 1");
  }
  if (!buffers(model).empty()) {
    refuse(
        "does not support layers with running statistics yet, such as batch norm; set "
        "dist.pipeline "
        "to 1");
  }

  std::vector<int64_t> cuts =
      loaded.config.dist.stage_blocks == "auto"
          ? cut_into_stages(costs.blocks, costs.head, static_cast<int>(parts))
          : given_cuts(loaded, parts, blocks);
  return std::make_unique<StageParameters>(
      world(), trained, std::move(cuts),
      model.has_head() ? model.head_weight().as_leaf() : nullptr);
}

}  // namespace lathe
