#include "dist/stage_parameters.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "autograd/node.h"
#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/storage.h"
#include "dist/group.h"

namespace lathe {

std::vector<int64_t> cut_into_stages(std::span<const double> costs, double after, int parts) {
  const size_t blocks = costs.size(), count = static_cast<size_t>(parts);
  LATHE_CHECK(count >= 1 && count <= blocks, "more parts than blocks");
  std::vector<double> sums{0};  // sums[n]: the cost of the first n blocks
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  sums.back() += after;

  // best[s][n]: the cost of the most expensive part, if the first n blocks are cut into s parts in
  // the best way.
  constexpr double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(count + 1, std::vector<double>(blocks + 1, none));
  std::vector<std::vector<size_t>> begin(count + 1, std::vector<size_t>(blocks + 1));
  best[0][0] = 0;
  for (size_t s = 1; s <= count; ++s) {
    for (size_t n = s; n <= blocks; ++n) {
      for (size_t last = s - 1; last < n; ++last) {
        const double cost = std::max(best[s - 1][last], sums[n] - sums[last]);
        if (cost < best[s][n]) {
          best[s][n] = cost;
          begin[s][n] = last;
        }
      }
    }
  }

  std::vector<int64_t> cuts{static_cast<int64_t>(blocks)};
  size_t n = blocks;
  for (size_t s = count; s > 0; --s) {
    n = begin[s][n];
    cuts.push_back(static_cast<int64_t>(n));
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

StageParameters::StageParameters(World& world, std::vector<NamedParameter> parameters,
                                 std::vector<int64_t> cuts, const Leaf* head)
    : world_(world),
      stages_(world.pipeline()),
      parameters_(std::move(parameters)),
      cuts_(std::move(cuts)),
      head_(head) {
  const auto rank = static_cast<size_t>(stages_.rank);
  bool is_before = true;  // false from the first parameter of a block on
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const NamedParameter& p = parameters_[i];
    is_before = is_before && p.block < 0;
    if (p.block >= 0)
      owner_.push_back(static_cast<int>(part_of_block(p.block) % stages_.size));
    else
      owner_.push_back(is_before ? 0 : stages_.size - 1);

    const std::vector<int64_t> owned = cuts_of(i);
    owned_.push_back({owned[rank], owned[rank + 1]});

    if (is_foreign(i) && !owns_memory(p.parameter.data())) {
      fail(Exit::usage, "dist.pipeline: ", p.path,
           " shares its memory with another tensor, so it can't be freed; set dist.pipeline = 1");
    }
    if (is_foreign(i)) continue;
    local_.push_back(p);
    index_of_local_.push_back(i);
  }
}

ElementRange StageParameters::blocks(int part) const {
  const auto of_all = static_cast<size_t>(part * stages_.size + stages_.rank);
  return {cuts_[of_all], cuts_[of_all + 1]};
}

/// Returns the index of the part that has this block, among the parts of all stages.
int64_t StageParameters::part_of_block(int64_t block) const {
  return std::upper_bound(cuts_.begin(), cuts_.end(), block) - cuts_.begin() - 1;
}

int StageParameters::part_of_local(size_t i) const {
  const int64_t block = local_[i].block;
  if (block >= 0) return static_cast<int>(part_of_block(block) / stages_.size);
  return stages_.rank == 0 ? 0 : parts() - 1;
}

/// Returns whether parameter i is an embedding of the first stage that the last stage uses as the
/// weight of its head.
bool StageParameters::is_tied(size_t i) const {
  return head_ != nullptr && parameters_[i].parameter.as_leaf() == head_ && owner_[i] == 0;
}

/// Returns whether only other stages use parameter i.
bool StageParameters::is_foreign(size_t i) const {
  const bool is_head_here = is_tied(i) && stages_.rank == stages_.size - 1;
  return owner_[i] != stages_.rank && !is_head_here;
}

/// Returns whether parameter i has no values here. On GPUs, foreign parameters outside of blocks
/// keep their values.
bool StageParameters::is_freed(size_t i) const {
  return is_foreign(i) && (parameters_[i].block >= 0 || !parameters_[i].parameter.data().is_cuda());
}

bool StageParameters::needs(const Leaf* parameter) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].parameter.as_leaf() == parameter) return !is_freed(i);
  }
  return true;
}

/// Returns cuts [stages + 1]: stage s owns the elements [cuts[s], cuts[s + 1]) of parameter i.
std::vector<int64_t> StageParameters::cuts_of(size_t i) const {
  std::vector<int64_t> cuts(static_cast<size_t>(stages_.size) + 1, 0);
  std::fill(cuts.begin() + owner_[i] + 1, cuts.end(), parameters_[i].parameter.numel());
  return cuts;
}

std::vector<StagePart> StageParameters::parts_of_local() const {
  std::vector<StagePart> parts;
  for (const size_t i : index_of_local_) parts.push_back({owner_[i], is_tied(i)});
  return parts;
}

void StageParameters::divide(std::span<const ElementRange> shares) {
  for (size_t n = 0; n < shares.size(); ++n) {
    const size_t i = index_of_local_[n];
    if (owner_[i] == stages_.rank) owned_[i] = shares[n];
  }
}

void StageParameters::free_foreign_parameters() {
  has_freed_ = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Variable& p = parameters_[i].parameter;
    if (is_foreign(i)) p.leaf().own = {at::empty({0}, p.data().options()), owned_[i].end};
  }
  free_foreign();
}

void StageParameters::free_foreign() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_foreign(i)) continue;
    const auto free = parameters_[i].block < 0 ? replace_by_zeros : free_storage;
    free(parameters_[i].parameter.data());
    free(parameters_[i].parameter.leaf().precision.low);
  }
}

/// Checks that this stage has no gradient of a parameter whose values it does not have. A use that
/// gives no gradient can't be detected.
void StageParameters::check_foreign() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_foreign(i) || !parameters_[i].parameter.leaf().grad.defined()) continue;
    fail(Exit::usage, "dist.pipeline: stage ", stages_.rank, " uses ", parameters_[i].path,
         ", which stage ", owner_[i],
         " has: visit() must name parameters in the order of their use, and a block must use only "
         "its own parameters; set dist.pipeline = 1");
  }
}

/// Returns for each parameter which stages have a gradient of it: [parameters, stages]. `own`: the
/// gradients of this stage, by parameter.
std::vector<uint8_t> StageParameters::stages_with_gradients(
    const std::vector<at::Tensor>& own) const {
  const size_t n = parameters_.size(), stages = static_cast<size_t>(stages_.size);
  std::vector<uint8_t> mine(n), all(n * stages);
  for (size_t i = 0; i < n; ++i) mine[i] = own[i].defined() ? 1 : 0;

  if (is_dry_run()) {
    // A dry run has no other stages to ask. Assume that the last stage has a gradient of a tied
    // embedding.
    for (size_t i = 0; i < n; ++i) {
      all[i * stages + stages - 1] = is_tied(i) ? 1 : 0;
      all[i * stages + static_cast<size_t>(stages_.rank)] = mine[i];
    }
    return all;
  }

  at::Tensor sent = at::empty({1, static_cast<int64_t>(n)}, at::kByte);
  std::copy(mine.begin(), mine.end(), sent.mutable_data_ptr<uint8_t>());
  const at::Tensor received = world_.gather_over_pipeline(sent).t().contiguous();
  std::copy_n(received.const_data_ptr<uint8_t>(), all.size(), all.begin());
  return all;
}

std::vector<at::Tensor> StageParameters::sum_gradients(std::vector<at::Tensor> shares) {
  const NoGrad no_grad;
  const MemoryScope memory(Memory::gradients);
  check_foreign();
  const bool are_shares = !shares.empty();
  std::vector<at::Tensor> own(parameters_.size());
  for (size_t n = 0; n < local_.size(); ++n) {
    const at::Tensor& grad = local_[n].parameter.leaf().grad;
    at::Tensor flat = grad.defined() ? grad.reshape({-1}) : grad;
    own[index_of_local_[n]] = are_shares ? std::move(shares[n]) : std::move(flat);
  }
  const std::vector<uint8_t> all = stages_with_gradients(own);

  std::vector<at::Tensor> sums;
  world_.guarded([&] {
    const auto stages = static_cast<size_t>(stages_.size);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor sum = summed(i, own[i], all.data() + i * stages);
      own[i].reset();
      sums.push_back(sum);
      if (are_shares) continue;
      // The owner's gradient remains on the parameter.
      const bool remains = owner_[i] == stages_.rank && sum.defined();
      const Variable& p = parameters_[i].parameter;
      p.leaf().grad = remains ? sum.view(p.sizes()) : at::Tensor();
    }
  });
  return sums;
}

/// Returns the gradient of parameter i in the form in which sum_gradients() returns it. `own`: the
/// gradient of this stage. has_gradient[s]: whether stage s has a gradient.
at::Tensor StageParameters::summed(size_t i, const at::Tensor& own, const uint8_t* has_gradient) {
  const Variable& parameter = parameters_[i].parameter;
  const at::TensorOptions options =
      parameter.data().options().dtype(parameter.leaf().precision.grad_dtype);
  const auto has = [&](int stage) { return has_gradient[stage] != 0; };
  if (std::none_of(has_gradient, has_gradient + stages_.size, [](uint8_t h) { return h != 0; }))
    return {};

  if (stages_.rank != owner_[i]) {
    if (has(stages_.rank) && own.numel() > 0) world_.stages().send(own, owner_[i])();
    return at::empty({0}, options);
  }

  // Add in the order of stages, so that the sum is bitwise the same in every run.
  at::Tensor sum;
  for (int stage = 0; stage < stages_.size; ++stage) {
    if (!has(stage)) continue;
    at::Tensor term = own;
    if (stage != stages_.rank) {
      term = at::empty({owned_[i].size()}, options);
      if (term.numel() > 0) world_.stages().receive(term, stage);
    }
    if (sum.defined())
      sum.add_(term);
    else
      sum = term;
  }
  return sum;
}

/// Sends parameter i from its owner to all stages, which must have memory for it.
void StageParameters::publish(size_t i) {
  at::Tensor flat = parameters_[i].parameter.data().view({-1});
  world_.stages().all_gather(flat, cuts_of(i));
  if (owner_[i] != stages_.rank) mark_updated(i);
}

/// Sends parameter i from the first stage to the last stage.
void StageParameters::publish_to_last(size_t i) {
  const int last = stages_.size - 1;
  at::Tensor data = parameters_[i].parameter.data();
  if (stages_.rank == 0) world_.stages().send(data, last)();
  if (stages_.rank != last) return;
  world_.stages().receive(data, 0);
  mark_updated(i);
}

/// Marks parameter i, which was received, as updated, and refreshes its working copy.
void StageParameters::mark_updated(size_t i) {
  const Variable& p = parameters_[i].parameter;
  bump_version(p.data());
  p.leaf().precision.refresh_low(p.data());
}

void StageParameters::publish_update() {
  const NoGrad no_grad;
  world_.guarded([&] {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (gathered_ > 0)
        publish(i);
      else if (is_tied(i))
        publish_to_last(i);
    }
  });
}

StageParameters::Gathered::Gathered(StageParameters* stage)
    : stage_(stage != nullptr && stage->has_freed_ ? stage : nullptr) {
  if (stage_ == nullptr || stage_->gathered_++ > 0) return;
  const NoGrad no_grad;
  for (size_t i = 0; i < stage_->parameters_.size(); ++i) {
    const Leaf& leaf = stage_->parameters_[i].parameter.leaf();
    for (const at::Tensor* t : {&stage_->parameters_[i].parameter.data(), &leaf.precision.low}) {
      if (!stage_->is_foreign(i) || !t->defined()) continue;
      free_storage(*t);
      allocate_storage(*t);
    }
    stage_->world_.guarded([&] { stage_->publish(i); });
  }
}

StageParameters::Gathered::~Gathered() {
  if (stage_ != nullptr && --stage_->gathered_ == 0) stage_->free_foreign();
}

}  // namespace lathe
