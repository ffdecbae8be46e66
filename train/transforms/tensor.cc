#include "train/transforms/tensor.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <set>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/error.h"
#include "core/memory.h"
#include "dist/world.h"
#include "train/config/run_config.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

std::vector<LayerCut> rules_of(const RunConfig& config) {
  const ModelKind& kind = *find_model_kind(config.model.kind);
  return kind.layer_cuts ? kind.layer_cuts(config.model.own) : std::vector<LayerCut>();
}

/// Returns the rule that cuts a parameter, or null. The bias of a layer that is cut along its
/// inputs stays whole.
const LayerCut* find_rule(const std::vector<LayerCut>& rules, const NamedParameter& p) {
  const std::string layer = p.path.substr(0, p.path.rfind('.'));
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const LayerCut& r) {
    return matches(r.layers, layer) && r.dim < p.parameter.dim();
  });
  return rule == rules.end() ? nullptr : &*rule;
}

Variable cut(const NamedParameter& p, const LayerCut& rule) {
  const RankAxis& ranks = world().tensor();
  const at::Tensor& whole = p.parameter.data();
  const int64_t size = whole.size(rule.dim);
  LATHE_CHECK(size % rule.sections == 0 && size / rule.sections >= ranks.size, p.path, " ",
              describe(whole), " can't be cut into ", ranks.size, " parts of ", rule.sections,
              " equal sections along dim ", rule.dim);
  auto made = std::make_shared<TensorCut>();
  made->dim = rule.dim;
  made->sections.assign(static_cast<size_t>(rule.sections), size / rule.sections);
  made->part = ranks.rank, made->parts = ranks.size;

  const Variable part =
      Variable::parameter(made->part_of(whole), p.path).requires_grad_(p.parameter.requires_grad());
  part.leaf().cut = std::move(made);
  return part;
}

}  // namespace

void cut_for_tensor_ranks(Model& model, const TransformContext& context) {
  if (world().tensor().size == 1) return;
  const MemoryScope memory(Memory::parameters);
  const std::vector<LayerCut> rules = rules_of(context.config);
  std::set<const LayerCut*> used;
  replace_parameters(model, [&](const NamedParameter& p) {
    const LayerCut* const rule = find_rule(rules, p);
    if (rule == nullptr) return p.parameter;
    used.insert(rule);
    return cut(p, *rule);
  });
  for (const LayerCut& rule : rules)
    LATHE_CHECK(used.contains(&rule), "layer_cuts() of model.kind = \"", context.config.model.kind,
                "\": no layer is called ", rule.layers);
}

std::optional<ConfigFault> check_tensor(const RunConfig& c) {
  const int64_t ranks = c.dist.tensor;
  if (ranks == 1) return std::nullopt;
  const auto fault = [&](const std::string& key, const std::string& why) {
    return ConfigFault{{"dist.tensor", key}, str("dist.tensor = ", ranks, " ", why)};
  };

  const std::vector<LayerCut> rules = rules_of(c);
  if (rules.empty()) {
    return fault("model.kind",
                 str("needs a kind of model with rules for cutting its layers, such as "
                     "gpt or llama, not \"",
                     c.model.kind, "\"; set it to 1"));
  }
  for (const LayerCut& rule : rules) {
    if (rule.units > 0 && rule.units % ranks != 0)
      return fault("model.kind",
                   str("does not divide the ", rule.units, " ", rule.unit, "; change one of them"));
  }

  if (adapters_of(c).rank > 0)
    return fault("adapters.rank", "is for models without adapters so far; set it to 1");
  if (c.memory.offloads("parameters"))
    return fault("memory.offload",
                 "is for parameters in memory so far; set it to 1, or leave the parameters out");
  if (c.memory.update_in_backward)
    return fault("memory.update_in_backward",
                 "is for updates after the backward pass so far; set it to 1, or leave "
                 "memory.update_in_backward out");
  return std::nullopt;
}

}  // namespace lathe
