// Makes an Optimizer: the groups of its parameters, and the state of each parameter.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstddef>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/error.h"
#include "core/kernels/rules.h"
#include "core/memory.h"
#include "core/storage.h"
#include "optim/optimizer.h"

namespace lathe {
namespace {

/// Returns the paths of the parameters. If there are more than eight, returns the first eight and
/// the total number: "a, b, c, ... (41 in all)".
std::string some_paths(const std::vector<NamedParameter>& parameters) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(parameters.size(), 8); ++i)
    text += (i > 0 ? ", " : "") + parameters[i].path;
  return parameters.size() > 8 ? str(text, ", ... (", parameters.size(), " in all)") : text;
}

bool chooses(const GroupOptions& o, const NamedParameter& p) {
  return o.which ? o.which(p) : matches(o.pattern, p.path);
}

/// Returns the index of a parameter's group. The first entry of `own` that chooses the parameter
/// selects a pair of groups: the first group is for parameters with weight decay, and the second
/// group is for parameters without weight decay by default. Weight decay applies to parameters with
/// two or more dimensions, unless their roles state otherwise.
size_t group_of(const std::vector<GroupOptions>& own, const NamedParameter& p) {
  const auto at = std::ranges::find_if(own, [&](const GroupOptions& o) { return chooses(o, p); });
  const size_t pair = at == own.end() ? 0 : static_cast<size_t>(at - own.begin()) + 1;
  return 2 * pair + (p.role.decayed.value_or(p.parameter.dim() >= 2) ? 0 : 1);
}

/// Throws Exit::usage if a value is not allowed for its key, or if values contradict each other.
void check_values(OptimConfig config) {
  static const Schema& schema = schema_of<OptimConfig>();
  for (const Field& field : schema.fields())
    schema.set(&config, field.key, schema.get(&config, field), "OptimConfig");
  if (config.kind == "momentum" && config.nesterov &&
      (config.dampening != 0 || config.momentum == 0))
    fail(Exit::usage, "optim.nesterov needs optim.dampening = 0 and optim.momentum > 0");
}

/// Throws Exit::usage, with the reason, if the pair of groups of an entry of `own` has no
/// parameters.
void check_groups(const std::vector<GroupOptions>& own, const std::vector<ParameterGroup>& groups,
                  const std::vector<NamedParameter>& parameters) {
  for (size_t i = 0; i < own.size(); ++i) {
    if (!groups[2 * i + 2].slots.empty() || !groups[2 * i + 3].slots.empty()) continue;

    const bool taken = std::ranges::any_of(
        parameters, [&](const NamedParameter& p) { return chooses(own[i], p); });
    fail(Exit::usage,
         "optim.groups: ", own[i].which ? "a predicate" : "match = \"" + own[i].pattern + "\"",
         taken ? " matches only parameters that earlier groups have taken; put this group before "
                 "those groups"
               : " matches no parameter; the parameters are " + some_paths(parameters));
  }
}

}  // namespace

Optimizer::Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
                     std::optional<uint64_t> rounding_seed, const std::vector<GroupOptions>& own_,
                     const std::vector<ElementRange>& shares, const std::filesystem::path& offload)
    : config_(config),
      method_(make_method(config)),
      is_sharded_(!shares.empty()),
      is_offloaded_(!offload.empty()),
      rounding_seed_(rounding_seed),
      control_(parameters.empty() ? at::Device(at::kCPU)
                                  : parameters[0].parameter.data().device()) {
  const MemoryScope scope(Memory::optimizer);
  check_values(config);
  if (control_.bytes().is_cuda() && !method_->runs_on_gpu())
    fail(Exit::usage, "optim.kind = \"", config.kind,
         "\" does not run on GPUs yet; use adamw, or train.device = \"cpu\"");

  // Groups come in pairs: one group for parameters with weight decay, and one for parameters
  // without weight decay by default. The second group of a pair has no decay unless its entry of
  // `own` sets weight_decay. Pair 0 is for parameters that no entry chooses. Entries that are given
  // in code come before entries of the config.
  std::vector<GroupOptions> own = own_;
  for (GroupOptions& group : group_options(config)) own.push_back(std::move(group));
  groups_ = {{.weight_decay = config.weight_decay}, {}};
  for (const auto& o : own) {
    groups_.push_back(
        {.weight_decay = o.weight_decay.value_or(config.weight_decay), .lr_factor = o.lr_factor});
    groups_.push_back({.weight_decay = o.weight_decay.value_or(0), .lr_factor = o.lr_factor});
  }

  for (size_t i = 0; i < parameters.size(); ++i) {
    const NamedParameter& p = parameters[i];
    const ElementRange all{0, p.parameter.numel()};
    groups_[group_of(own, p)].slots.push_back(make_slot(p, i, is_sharded_ ? shares[i] : all));
  }
  check_groups(own, groups_, parameters);

  // The sums of squared gradients are stored in the order of groups and slots, as in
  // sum_gradients().
  stages_.resize(parameters.size());
  int64_t chunks = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].slots.size(); ++i) {
      const Slot& slot = groups_[g].slots[i];
      stages_[slot.index] = {.group = g, .slot = i, .first_chunk = chunks};
      chunks += grad_sum_chunks(slot.param.numel());
    }
  }
  partials_ =
      at::empty({std::max<int64_t>(chunks, 1)}, control_.bytes().options().dtype(at::kDouble));

  if (is_offloaded_) offload_state(offload, parameters);
  start_averages();

  // NAdam's product of momenta lives in the step control on the device; a view of it is saved with
  // the checkpoint.
  if (method_->rule().kind == rule_kind<NAdam>) {
    const at::Tensor product =
        control_.bytes().narrow(0, offsetof(StepControl, mu_product), sizeof(double));
    shared_state_.emplace_back("mu_product", product.view(at::kDouble));
  }
}

bool needs_whole_tensors(const MethodState& state, at::IntArrayRef sizes, const std::string& kind) {
  const bool has_other_sizes =
      std::any_of(state.tensors.begin(), state.tensors.end(),
                  [&](const StateTensor& t) { return sizes != at::IntArrayRef(t.sizes); });
  // 8-bit kinds keep the moments of small tensors in float32, and the size of the complete tensor
  // decides this.
  const bool needs_whole = state.whole || !state.divisible;
  return (needs_whole && !state.joins_parts) || has_other_sizes || kind.ends_with("8bit");
}

/// Makes the slot of a parameter, with the state of the elements `own`. State is allocated here, so
/// that a checkpoint can be loaded before the first step.
Slot Optimizer::make_slot(const NamedParameter& p, size_t index, ElementRange own) {
  const at::Tensor& data = p.parameter.data();
  const MethodState state = method_->state(p);
  const bool is_complete = own.size() == data.numel();
  LATHE_CHECK(is_complete || own.size() == 0 || state.divisible, "optimizer: ", p.path,
              " can't be divided among processes");

  Slot slot{.path = p.path,
            .param = p.parameter,
            .names = {},
            .places = {},
            .state = {},
            .parts = {},
            .whole = state.whole,
            .index = index,
            .own = own};
  if (const auto& cut = p.parameter.leaf().cut;
      cut && needs_whole_tensors(state, data.sizes(), config_.kind)) {
    fail(Exit::usage, "optim.kind = \"", config_.kind, "\" needs complete tensors, but ", p.path,
         " is cut among ", cut->parts, " processes (dist.tensor); use adamw, or dist.tensor = 1");
  }
  if (own.size() > 0) update_flops_ += state.flops;
  // A meta tensor stands for state in a file. It is made without ATen's dispatcher, whose calls a
  // dry run intercepts.
  const auto shape = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::detail::empty_meta(sizes, data.options().dtype(dtype).device(at::kMeta));
  };
  for (const StateTensor& t : state.tensors) {
    const at::TensorOptions options = data.options().dtype(t.dtype);
    const int64_t elements = c10::multiply_integers(t.sizes);
    const auto place = [&](int64_t i) { return i == data.numel() ? elements : i / t.per; };
    const ElementRange part{is_complete ? 0 : place(own.begin), place(own.end)};

    slot.names.push_back(t.name);
    slot.places.push_back(t.place);
    const std::vector<int64_t> sizes = is_complete ? t.sizes : std::vector{part.size()};
    slot.state.push_back(is_offloaded_ ? shape(sizes, t.dtype) : at::full(sizes, t.start, options));
    slot.parts.push_back({.sizes = t.sizes,
                          .own = part,
                          .slot = index,
                          .tensor = slot.parts.size(),
                          .cut = p.parameter.leaf().cut});
  }

  if (config_.ema_decay > 0) {
    const at::ScalarType dtype = state_dtype(data);
    const std::vector<int64_t> sizes = is_complete ? data.sizes().vec() : std::vector{own.size()};
    slot.names.emplace_back(average_name);
    slot.state.push_back(is_offloaded_ ? shape(sizes, dtype)
                                       : at::empty(sizes, data.options().dtype(dtype)));
    slot.parts.push_back({.sizes = data.sizes().vec(),
                          .own = own,
                          .slot = index,
                          .tensor = slot.parts.size(),
                          .cut = p.parameter.leaf().cut});
  }
  return slot;
}

void Optimizer::start_averages() {
  if (config_.ema_decay == 0) return;
  for (const ParameterGroup& group : groups_) {
    for (const Slot& slot : group.slots) {
      const at::Tensor& data = slot.param.data();
      at::Tensor own = slot.param.leaf().own.elements;
      if (!own.defined() && has_memory(data))
        own = data.view({-1}).narrow(0, slot.own.begin, slot.own.size());
      if (own.defined() && slot.own.size() > 0)
        write_state(slot.state.back(), slot.parts.back(), own);
    }
  }
}

std::vector<bool> divisible_parameters(const OptimConfig& config,
                                       const std::vector<NamedParameter>& parameters) {
  const std::unique_ptr<Method> method = make_method(config);
  std::vector<bool> divisible;
  for (const NamedParameter& p : parameters) divisible.push_back(method->state(p).divisible);
  return divisible;
}

}  // namespace lathe
