#include "optim/optimizer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "autograd/node.h"
#include "core/device.h"
#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/kernels/rules.h"
#include "core/memory.h"
#include "core/mode.h"
#include "optim/methods/pieces.h"

namespace lathe {
namespace {

/// Returns the gradient of the elements that a slot owns; undefined if there is no gradient.
const at::Tensor& gradient_of(const Slot& slot, const StepOptions& options) {
  return options.own_gradients.empty() ? slot.param.grad() : options.own_gradients[slot.index];
}

/// Throws unless a slot's gradient matches its parameter, since the kernels get only pointers to
/// both.
void check_slot(const Slot& slot, const at::Tensor& g, bool is_sharded) {
  const at::Tensor& p = slot.param.data();
  const int64_t own = slot.own.size();
  const at::IntArrayRef sizes = is_sharded ? at::IntArrayRef(own) : p.sizes();
  LATHE_CHECK(g.sizes() == sizes && g.device() == p.device() && g.is_floating_point(),
              "optimizer: the gradient of ", slot.path, " is ", describe(g), " on ",
              g.device().str(), ", but the parameter is ", describe(p), " on ", p.device().str());
  LATHE_CHECK(g.is_contiguous() && p.is_contiguous(), "optimizer: ", slot.path,
              " or its gradient is not contiguous");
}

/// Returns whether a slot keeps a moving average. The average is the last tensor of the slot's
/// state.
bool has_average(const Slot& slot) { return slot.state.size() > slot.places.size(); }

/// Records that the kernels wrote to a slot's parameter, state and working copy.
void bump_versions(const Slot& slot) {
  bump_version(slot.param.data());
  for (const auto& s : slot.state) bump_version(s);
  Precision& kept = slot.param.leaf().precision;
  if (!kept.low.defined()) return;
  bump_version(kept.low);
  kept.mark_low_current(slot.param.data());
}

/// Returns the kernel's view of a slot, without the fields that depend on a step's gradient.
UpdateArgs args_of(const Slot& slot, const ParameterGroup& group, const StepOptions& options,
                   const std::optional<uint64_t>& rounding_seed) {
  const Leaf& leaf = slot.param.leaf();
  const at::Tensor &p = slot.param.data(), &low = leaf.precision.low;
  const auto at_first = [&](const at::Tensor& t) {
    return static_cast<std::byte*>(t.data_ptr()) +
           slot.own.begin * static_cast<int64_t>(t.element_size());
  };

  // If this process keeps its own elements in a separate tensor, the parameter and its working copy
  // have no memory.
  const at::Tensor own =
      options.own_parameters.empty() ? at::Tensor() : options.own_parameters[slot.index];
  UpdateArgs a;
  a.param = own.defined() ? own.data_ptr() : at_first(p);
  // Put each state tensor at the index that the method asked for. The moving average, if any, comes
  // last and has no such index.
  const auto address = [](const at::Tensor& t) { return t.is_meta() ? nullptr : t.data_ptr(); };
  for (size_t i = 0; i < slot.places.size(); ++i) a.state[slot.places[i]] = address(slot.state[i]);
  if (has_average(slot)) a.average = address(slot.state.back());

  if (low.defined() && !own.defined()) {
    a.low = at_first(low);
    a.low_type = element_of(low.scalar_type());
  }

  a.param_type = element_of(p.scalar_type());
  a.n = slot.own.size();
  a.first = slot.own.begin;
  a.chunks = grad_sum_chunks(p.numel());
  a.weight_decay = group.weight_decay;
  a.lr_scale = group.lr_factor;
  // The path is part of the key, so that two parameters never share random numbers.
  if (rounding_seed && a.param_type == Element::bf16) {
    a.stochastic = true;
    a.key = make_key(*rounding_seed, hash_name("stochastic rounding/" + slot.path));
  }
  return a;
}

/// Sums the counts of rounded updates over all processes. `control`: the bytes of the step's
/// StepControl.
void sum_rounding_counts(const at::Tensor& control, const StepOptions& options) {
  static_assert(offsetof(StepControl, lost) == offsetof(StepControl, moved) + sizeof(int64_t));
  at::Tensor counts =
      control.narrow(0, offsetof(StepControl, moved), 2 * sizeof(int64_t)).view(at::kLong);
  options.sum_over_processes(counts);
}

}  // namespace

void Optimizer::set_updates(int64_t n) {
  StepControl control{.updates = n};
  if (n > 0) control.mu_product = control_.get().mu_product;
  control_.set(control);
}

void Optimizer::record_skipped_update(double loss_scale) {
  StepControl control = control_.get();
  control.loss_scale = loss_scale;
  control.moved = control.lost = 0;
  control_.set(control);
}

at::Tensor Optimizer::is_skipped() const {
  return control_.bytes()
      .narrow(0, offsetof(StepControl, skip), sizeof(int64_t))
      .view(at::kLong)
      .squeeze(0);
}

void Optimizer::sum_gradients(const StepOptions& options) {
  chunks_ = 0;
  double* const sums = partials_.mutable_data_ptr<double>();
  std::vector<GradArgs> grads;

  std::vector<int64_t> sizes, first_chunks;
  for (const auto& group : groups_) {
    for (const auto& slot : group.slots) {
      const at::Tensor& g = gradient_of(slot, options);
      if (!g.defined()) continue;
      check_slot(slot, g, is_sharded_);
      grads.push_back(
          {.grad = g.const_data_ptr(), .type = element_of(g.scalar_type()), .n = g.numel()});
      sizes.push_back(g.numel());
      first_chunks.push_back(chunks_ + slot.own.begin / grad_sum_chunk);
      chunks_ += grad_sum_chunks(slot.param.numel());
    }
  }

  // The sums are stored in the order of groups and slots; step() uses the same order to find the
  // sums of each gradient. Chunks of other processes count as 0 until the sums are shared.
  if (is_sharded_) partials_.zero_();
  if (!partials_.is_cuda()) {
    each_piece_of(sizes, grad_sum_chunk, [&](size_t which, int64_t, int64_t begin, int64_t end) {
      sums[first_chunks[which] + begin / grad_sum_chunk] =
          grad_sum_cpu(grads[which].grad, grads[which].type, begin, end);
    });
  } else if (!is_sharded_) {
    if (!grads.empty()) cuda_api().grad_sum(grads.data(), static_cast<int64_t>(grads.size()), sums);
  } else {
    for (size_t i = 0; i < grads.size(); ++i)
      cuda_api().grad_sum(&grads[i], 1, sums + first_chunks[i]);
  }
  if (is_sharded_) options.sum_over_processes(partials_);
  if (options.sum_over_tensor_ranks) add_sums_of_tensor_ranks(options);
}

/// For each parameter that is cut among tensor ranks, replaces its first sum by the total over all
/// tensor ranks, and its other sums by 0. Parameters that are not cut have the same gradient on all
/// tensor ranks.
void Optimizer::add_sums_of_tensor_ranks(const StepOptions& options) {
  const at::Tensor on_host = partials_.cpu();  // on a CPU, this is partials_ itself
  double* const sums = on_host.mutable_data_ptr<double>();
  std::vector<double> totals;
  std::vector<int64_t> places;
  int64_t first = 0;
  for (const auto& group : groups_) {
    for (const auto& slot : group.slots) {
      if (!gradient_of(slot, options).defined()) continue;
      const int64_t chunks = grad_sum_chunks(slot.param.numel());
      if (cut_of(slot.param) != nullptr) {
        totals.push_back(std::accumulate(sums + first, sums + first + chunks, 0.0));
        std::fill_n(sums + first, chunks, 0.0);
        places.push_back(first);
      }
      first += chunks;
    }
  }
  if (totals.empty()) return;

  at::Tensor all = at::empty({static_cast<int64_t>(totals.size())}, at::kDouble);
  std::copy(totals.begin(), totals.end(), all.mutable_data_ptr<double>());
  options.sum_over_tensor_ranks(all);
  for (size_t i = 0; i < places.size(); ++i) sums[places[i]] = all.const_data_ptr<double>()[i];
  if (partials_.is_cuda()) partials_.copy_(on_host);
}

void Optimizer::decide(double lr, const StepOptions& options) {
  const bool cuda = partials_.is_cuda();
  const at::Tensor& given = options.loss;
  LATHE_CHECK(!given.defined() || (given.scalar_type() == at::kFloat && given.numel() == 1 &&
                                   given.device() == partials_.device()),
              "Optimizer::step: the loss must be one float32 number on ", partials_.device().str(),
              ", not ", describe(given), given.defined() ? " on " + given.device().str() : "");

  rule_ = method_->rule();
  rule_.lr = lr;
  const StepRequest request{.rule = rule_,
                            .clip = config_.grad_clip_by == "norm" ? config_.grad_clip : 0,
                            .step = options.step,
                            .policy = options.scale_policy};
  const float* loss = given.defined() ? given.const_data_ptr<float>() : nullptr;
  (cuda ? cuda_api().decide : decide_cpu)(request, partials_.const_data_ptr<double>(), chunks_,
                                          loss, control_.pointer(), options.scale);
}

/// Returns the kernels' arguments for the update of a slot. `first_chunk` is the index of the
/// slot's first entry in partials_.
SlotUpdate Optimizer::update_of(const ParameterGroup& group, const Slot& slot,
                                const at::Tensor& grad, int64_t first_chunk,
                                const StepOptions& options) const {
  SlotUpdate one{.args = args_of(slot, group, options, rounding_seed_),
                 .sizes = slot.param.data().sizes(),
                 .whole = slot.whole,
                 .parameter = slot.index,
                 .cut = cut_of(slot.param),
                 .join = &options.join_tensor_ranks};
  if (!grad.defined()) return one;
  one.args.grad = grad.const_data_ptr();
  one.args.grad_type = element_of(grad.scalar_type());
  one.args.sums = partials_.const_data_ptr<double>() + first_chunk;
  return one;
}

/// Updates the moving averages of parameters that have no gradient, by a descent with a learning
/// rate of 0.
void Optimizer::update_averages(const std::vector<SlotUpdate>& of) {
  UpdateRule rule = rule_;
  rule.kind = rule_kind<Descend>;
  rule.lr = 0;
  update_elements(of, rule, control_.pointer(), partials_.is_cuda());
}

/// Updates the parameters of `updates`. For the parameters of `stay`, updates only the moving
/// averages.
void Optimizer::update_all(std::vector<SlotUpdate>& updates, const std::vector<SlotUpdate>& stay) {
  if (offload_ != nullptr) return update_offloaded(updates, stay);
  method_->update(updates, rule_, control_.pointer(), partials_.is_cuda());
  update_averages(stay);
}

void Optimizer::step(double lr, const StepOptions& options) {
  const NoGrad no_grad;

  // Both passes over the gradients and the decision run on the device, so the host never waits for
  // a GPU.
  sum_gradients(options);
  decide(lr, options);

  // On a GPU only the device knows the decision: the kernels below check `skip` there.
  const bool cuda = partials_.is_cuda();
  StepControl* control = control_.pointer();
  if (!cuda && control->skip != 0) return;

  std::vector<SlotUpdate> updates, stay;
  int64_t chunk = 0;
  for (auto& group : groups_) {
    for (auto& slot : group.slots) {
      const at::Tensor& grad = gradient_of(slot, options);
      const int64_t first_chunk = chunk;
      if (grad.defined()) chunk += grad_sum_chunks(slot.param.numel());
      const bool is_mine = slot.own.size() > 0 || slot.param.numel() == 0;
      if (!is_mine) continue;

      const SlotUpdate one = update_of(group, slot, grad, first_chunk, options);
      if (!grad.defined()) {
        // A parameter without a gradient does not change, but its average still approaches the
        // parameter.
        if (has_average(slot)) stay.push_back(one);
        continue;
      }
      updates.push_back(one);
      // On a GPU, this also bumps versions in a skipped step, which is harmless.
      bump_versions(slot);
    }
  }

  update_all(updates, stay);
  if (is_sharded_ && !is_dry_run()) sum_rounding_counts(control_.bytes(), options);
  if (offload_ != nullptr) offload_->end_step();
}

void Optimizer::begin_stages() {
  LATHE_CHECK(!is_sharded_, "Optimizer: a step in stages needs all of its state in one process");
  partials_.zero_();
  chunks_ = partials_.numel();
  for (Stage& stage : stages_) stage.is_summed = stage.is_updated = false;
}

void Optimizer::sum_gradient(size_t i) {
  Stage& stage = stages_.at(i);
  const Slot& slot = groups_[stage.group].slots[stage.slot];
  const at::Tensor& g = slot.param.grad();
  check_slot(slot, g, is_sharded_);
  stage.is_summed = true;

  const GradArgs args{
      .grad = g.const_data_ptr(), .type = element_of(g.scalar_type()), .n = g.numel()};
  double* const sums = partials_.mutable_data_ptr<double>() + stage.first_chunk;
  if (partials_.is_cuda()) return cuda_api().grad_sum(&args, 1, sums);
  each_piece(args.n, grad_sum_chunk, [&](int64_t piece, int64_t begin, int64_t end) {
    sums[piece] = grad_sum_cpu(args.grad, args.type, begin, end);
  });
}

void Optimizer::update_parameter(size_t i, const StepOptions& options) {
  const NoGrad no_grad;
  Stage& stage = stages_.at(i);
  if (!stage.is_summed) sum_gradient(i);
  stage.is_updated = true;

  ParameterGroup& group = groups_[stage.group];
  Slot& slot = group.slots[stage.slot];
  const SlotUpdate one = update_of(group, slot, slot.param.grad(), stage.first_chunk, options);
  const bool cuda = partials_.is_cuda();
  StepControl* const control = control_.pointer();
  (cuda ? cuda_api().decide_gradient : decide_gradient_cpu)(one.args.sums, one.args.chunks,
                                                            control);
  // On a GPU only the device knows the decision; see step().
  if (!cuda && control->skip != 0) return;

  bump_versions(slot);
  std::vector<SlotUpdate> updates{one};
  update_all(updates, {});
}

void Optimizer::end_stages(const StepOptions& options) {
  const NoGrad no_grad;
  const bool cuda = partials_.is_cuda();
  StepControl* const control = control_.pointer();
  const at::Tensor& loss = options.loss;
  (cuda ? cuda_api().end_stages : end_stages_cpu)(
      options.step, partials_.const_data_ptr<double>(), chunks_,
      loss.defined() ? loss.const_data_ptr<float>() : nullptr, control);
  if (!cuda && control->skip != 0) return;

  std::vector<SlotUpdate> stay;
  for (const Stage& stage : stages_) {
    if (stage.is_updated) continue;
    const ParameterGroup& group = groups_[stage.group];
    const Slot& slot = group.slots[stage.slot];
    if (has_average(slot))
      stay.push_back(update_of(group, slot, at::Tensor(), stage.first_chunk, options));
  }
  std::vector<SlotUpdate> none;
  update_all(none, stay);
  if (offload_ != nullptr) offload_->end_step();
}

}  // namespace lathe
