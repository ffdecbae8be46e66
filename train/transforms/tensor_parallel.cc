#include "train/transforms/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <set>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/storage.h"
#include "dist/world.h"
#include "train/config/run_config.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Returns whether a parameter of a layer is cut if the layer's weight is cut along `dim`. Biases
/// and the magnitudes of DoRA adapters have only dimension 0, so they are not cut if `dim` is 1. An
/// adapter's matrices are A [rank, in] and B [out, rank].
bool is_cut_too(const NamedParameter& p, int64_t dim) {
  if (p.role.name == Role::lora_a.name) return dim == 1;
  if (p.role.name == Role::lora_b.name) return dim == 0;
  return dim < p.parameter.dim();
}

/// Returns the rule that cuts a parameter, or null if no rule does. The first rule that matches a
/// layer applies to all of the layer's parameters.
const LayerCut* find_rule(const std::vector<LayerCut>& rules, const NamedParameter& p) {
  const std::string layer = p.path.substr(0, p.path.rfind('.'));
  const auto rule = std::find_if(rules.begin(), rules.end(),
                                 [&](const LayerCut& r) { return matches(r.layers, layer); });
  return rule == rules.end() || !is_cut_too(p, rule->dim) ? nullptr : &*rule;
}

Variable cut(const NamedParameter& p, const LayerCut& rule) {
  const RankAxis& ranks = world().tensor();
  const at::Tensor& whole = p.parameter.data();
  const int64_t size = whole.size(rule.dim);
  if (size % rule.sections != 0 || size / rule.sections < ranks.size) {
    fail(Exit::usage, "dist.tensor = ", ranks.size, ": ", p.path, " ", describe(whole),
         " can't be cut among ", ranks.size, " processes along dim ", rule.dim,
         rule.sections > 1 ? str(" in each of ", rule.sections, " equal sections") : "",
         "; lower dist.tensor, or raise the key of [model] that sets this size");
  }
  auto made = std::make_shared<TensorCut>();
  made->dim = rule.dim;
  made->sections.assign(static_cast<size_t>(rule.sections), size / rule.sections);
  made->part = ranks.rank;
  made->parts = ranks.size;

  // part_of() copies values of the complete parameter, or returns a meta tensor if the complete
  // parameter is a meta tensor. If the complete parameter has no memory yet, the part has no memory
  // either.
  const at::Tensor values =
      has_memory(whole) || whole.is_meta()
          ? made->part_of(whole)
          : tensor_without_memory(made->part_sizes(whole.sizes(), made->part), whole.options());
  const Variable part =
      Variable::parameter(values, p.path).requires_grad_(p.parameter.requires_grad());
  part.leaf().cut = std::move(made);
  return part;
}

}  // namespace

std::vector<LayerCut> layer_cuts_of(const RunConfig& config) {
  const ModelKind& kind = *find_model_kind(config.model.kind);
  return kind.layer_cuts ? kind.layer_cuts(config.model.own) : std::vector<LayerCut>();
}

void cut_for_tensor_ranks(Model& model, const TransformContext& context) {
  const int ranks = world().tensor().size;
  if (ranks == 1) return;
  const MemoryScope memory(Memory::parameters);
  const std::vector<LayerCut> rules = layer_cuts_of(context.config);
  const std::string table = "layer_cuts() of model.kind = \"" + context.config.model.kind + "\": ";
  for (const LayerCut& rule : rules) {
    if (rule.units % ranks != 0)
      fail(Exit::usage, "dist.tensor = ", ranks, " does not divide the ", rule.units, " ",
           rule.unit);
    LATHE_CHECK(rule.dim == 0 || rule.dim == 1, table, "the layer ", rule.layers,
                " is cut along dim ", rule.dim, "; a weight has the dims 0 and 1");
  }

  std::set<const LayerCut*> used;
  replace_parameters(model, [&](const NamedParameter& p) {
    const LayerCut* const rule = find_rule(rules, p);
    if (rule == nullptr) return p.parameter;
    used.insert(rule);
    LATHE_CHECK(p.role.name != Role::head.name || model.has_head(), table, "the layer ",
                rule->layers,
                " is the head, and a model whose head is cut must have features() and "
                "head_weight()");
    return cut_of(p.parameter) != nullptr ? p.parameter : cut(p, *rule);
  });
  for (const LayerCut& rule : rules)
    LATHE_CHECK(used.contains(&rule), table, "no layer matches ", rule.layers);
}

}  // namespace lathe
