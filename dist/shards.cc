#include "dist/shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/dtype.h"
#include "core/kernels/update.h"
#include "core/memory.h"
#include "core/mode.h"
#include "dist/group.h"

namespace lathe {
namespace {

/// Divides `elements` among the ranks so that their loads become as equal as possible. Returns the
/// number of elements that each rank gets.
std::vector<int64_t> balanced_shares(const std::vector<int64_t>& loads, int64_t elements) {
  const size_t ranks = loads.size();
  std::vector<size_t> order(ranks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return loads[a] < loads[b]; });

  // Find the level to which the ranks with the least load can be raised together. The other ranks
  // are already above that level and get nothing.
  size_t active = ranks;
  int64_t level = 0;
  for (; active > 0; --active) {
    int64_t sum = elements;
    for (size_t i = 0; i < active; ++i) sum += loads[order[i]];
    level = sum / static_cast<int64_t>(active);
    if (loads[order[active - 1]] <= level) break;
  }

  std::vector<int64_t> shares(ranks);
  int64_t left = elements;
  for (size_t i = 0; i < active; ++i) {
    const size_t rank = order[i];
    shares[rank] = i + 1 == active ? left : std::min(left, level - loads[rank]);
    left -= shares[rank];
  }
  return shares;
}

StagePart part_of(const ShardLayout::Options& options, size_t parameter) {
  return options.parts.empty() ? StagePart() : options.parts[parameter];
}

}  // namespace

ShardLayout::ShardLayout(std::span<const NamedParameter> parameters,
                         const std::vector<bool>& is_divisible, const Options& options)
    : bucket_of_(parameters.size()), offsets_(parameters.size()) {
  for (const NamedParameter& p : parameters) sizes_.push_back(p.parameter.numel());
  fill_buckets(parameters, is_divisible, options);

  // All tensor ranks must give an indivisible parameter to the same data rank, since the owners of
  // its parts update it together. The parts may differ in size, so loads are counted in elements of
  // the whole tensors.
  std::vector<int64_t> whole;
  for (const NamedParameter& p : parameters) whole.push_back(full_numel(p.parameter));
  const bool has_parts = whole != sizes_;

  const auto is_whole = [&](const Bucket& bucket) {
    return cut_of(parameters[bucket.parameters[0]].parameter) == nullptr;
  };

  // Count the elements that each rank owns in the buckets so far, separately for each StagePart.
  // Parameters that have the same sizes on all tensor ranks are also counted separately, so that
  // their ranges are the same on all of these ranks, as sum_block_gradients() needs
  // (dist/sequence_ranks.h).
  std::map<std::pair<StagePart, bool>, std::vector<int64_t>> loads_of;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    std::vector<int64_t>& loads =
        loads_of[{part_of(options, bucket.parameters[0]),
                  has_parts && (!bucket.is_divisible || is_whole(bucket))}];
    loads.resize(static_cast<size_t>(options.ranks));
    if (bucket.is_divisible)
      cut(bucket, loads);
    else
      assign_whole(bucket, whole, loads);

    int64_t offset = 0;
    for (const size_t i : bucket.parameters) {
      bucket_of_[i] = b;
      offsets_[i] = offset;
      offset += sizes_[i];
    }
  }
}

/// Fills buckets in the reverse order of the parameters. All parameters of a bucket agree in their
/// dtype, the dtype of their gradients, their StagePart and, with blocks_apart, their block. They
/// also agree in whether they are divisible, have working copies, and are cut among tensor ranks.
void ShardLayout::fill_buckets(std::span<const NamedParameter> parameters,
                               const std::vector<bool>& is_divisible, const Options& options) {
  using Key = std::tuple<at::ScalarType, at::ScalarType, bool, int64_t, bool, bool, StagePart>;
  std::map<Key, Bucket> open;
  std::map<Key, int64_t> bytes;
  const auto close = [&](const Key& key) {
    buckets_.push_back(std::move(open.at(key)));
    open.erase(key);
    bytes[key] = 0;
  };

  for (size_t left = parameters.size(); left-- > 0;) {
    const Variable& parameter = parameters[left].parameter;
    const at::ScalarType dtype = parameter.leaf().precision.grad_dtype;
    const int64_t block = options.blocks_apart ? parameters[left].block : -1;
    const bool has_copy = parameter.leaf().precision.low.defined();
    const StagePart part = part_of(options, left);
    const bool is_cut = cut_of(parameter) != nullptr;
    const Key key{dtype, parameter.dtype(), is_divisible[left], block, has_copy, is_cut, part};
    const int64_t elements = is_divisible[left] ? sizes_[left] : full_numel(parameter);
    const int64_t size = elements * static_cast<int64_t>(c10::elementSize(dtype));

    if (open.contains(key) && bytes[key] + size > options.bucket_bytes) close(key);
    const at::ScalarType sent = dtype == at::kFloat ? options.reduce_dtype : dtype;
    Bucket& bucket =
        open.try_emplace(key, Bucket{.parameters = {}, .dtype = dtype, .sent = sent}).first->second;
    bucket.is_divisible = is_divisible[left];
    bucket.block = block;
    bucket.owner = part.owner;
    bucket.parameters.push_back(left);
    bytes[key] += size;
  }
  while (!open.empty()) close(open.begin()->first);

  // A bucket is complete with its last parameter. Ranks send buckets in this order, so a bucket
  // that is complete early must not wait for a bucket that is complete late.
  std::stable_sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
    return a.parameters.back() > b.parameters.back();
  });
}

/// Cuts a bucket into one share for each rank so that the loads are balanced, as far as the
/// permitted positions of cuts allow. Adds the shares to `loads`.
void ShardLayout::cut(Bucket& bucket, std::vector<int64_t>& loads) {
  std::vector<int64_t> permitted{0};
  for (const size_t i : bucket.parameters) {
    const int64_t begin = permitted.back();
    for (int64_t at = grad_sum_chunk; at < sizes_[i]; at += grad_sum_chunk)
      permitted.push_back(begin + at);
    permitted.push_back(begin + sizes_[i]);
  }

  const std::vector<int64_t> shares = balanced_shares(loads, permitted.back());
  int64_t wanted = 0;
  bucket.cuts = {0};
  for (size_t r = 0; r < loads.size(); ++r) {
    wanted += shares[r];
    const auto above = std::lower_bound(permitted.begin(), permitted.end(), wanted);
    const bool is_below_nearer =
        above != permitted.begin() && wanted - *(above - 1) < *above - wanted;
    bucket.cuts.push_back(is_below_nearer ? *(above - 1) : *above);
    loads[r] += bucket.cuts[r + 1] - bucket.cuts[r];
  }
}

/// Gives each parameter of a bucket to the rank with the least load, and sorts the parameters by
/// rank. `whole`: the size of each parameter, in elements, before it was cut among tensor ranks.
void ShardLayout::assign_whole(Bucket& bucket, std::span<const int64_t> whole,
                               std::vector<int64_t>& loads) {
  // Assign the largest parameters first, so that the smaller ones even out the loads.
  std::vector<size_t> order = bucket.parameters;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return whole[a] > whole[b]; });
  std::vector<std::vector<size_t>> owned(loads.size());
  for (const size_t i : order) {
    const auto rank =
        static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    owned[rank].push_back(i);
    loads[rank] += whole[i];
  }

  bucket.parameters.clear();
  bucket.cuts = {0};
  for (const std::vector<size_t>& of_rank : owned) {
    int64_t end = bucket.cuts.back();
    for (const size_t i : of_rank) {
      bucket.parameters.push_back(i);
      end += sizes_[i];
    }
    bucket.cuts.push_back(end);
  }
}

ElementRange ShardLayout::range(size_t parameter, int rank) const {
  const Bucket& bucket = buckets_[bucket_of_[parameter]];
  const auto r = static_cast<size_t>(rank);
  const int64_t offset = offsets_[parameter], size = sizes_[parameter];
  const int64_t begin = std::clamp(bucket.cuts[r] - offset, int64_t{0}, size);
  return {begin, std::clamp(bucket.cuts[r + 1] - offset, begin, size)};
}

std::vector<ElementRange> ShardLayout::ranges(int rank) const {
  std::vector<ElementRange> all;
  for (size_t i = 0; i < sizes_.size(); ++i) all.push_back(range(i, rank));
  return all;
}

bool exchanges_every_micro_batch(const World& world, const std::string& shard) {
  const int ranks = world.data().size;
  return (shard == "gradients" || shard == "parameters") && ranks > 1 &&
         world.context().size == 1 && std::has_single_bit(static_cast<unsigned>(ranks));
}

int ShardLayout::largest_owner(int stage) const {
  std::vector<int64_t> owned(buckets_.empty() ? 1 : buckets_[0].cuts.size() - 1);
  for (const Bucket& bucket : buckets_) {
    for (size_t r = 0; bucket.owner == stage && r < owned.size(); ++r)
      owned[r] += bucket.cuts[r + 1] - bucket.cuts[r];
  }
  const auto most = std::max_element(owned.begin(), owned.end());
  return 100 * *most < 101 * owned[0] ? 0 : static_cast<int>(most - owned.begin());
}

at::ScalarType gathered_dtype(const Bucket& bucket, std::span<const NamedParameter> parameters) {
  const Variable& first = parameters[bucket.parameters.at(0)].parameter;
  const at::Tensor& copy = first.leaf().precision.low;
  return copy.defined() ? copy.scalar_type() : first.dtype();
}

bool has_any_gradient(const Bucket& bucket, const std::vector<char>& has_gradient) {
  return std::ranges::any_of(bucket.parameters, [&](size_t i) { return has_gradient[i] != 0; });
}

int64_t bytes_sent_in_step(const World& world, int data_rank, const ShardLayout& layout,
                           std::span<const NamedParameter> parameters,
                           const std::vector<char>& has_gradient, const std::string& shard,
                           int64_t rounds) {
  const auto rank = static_cast<size_t>(data_rank);
  const bool each = exchanges_every_micro_batch(world, shard);
  int64_t bytes = 0, last_block = -1;
  for (const Bucket& bucket : layout.buckets()) last_block = std::max(last_block, bucket.block);
  for (const Bucket& bucket : layout.buckets()) {
    const Variable& first = parameters[bucket.parameters.at(0)].parameter;
    const auto of_gradient = static_cast<int64_t>(c10::elementSize(bucket.sent));
    const auto of_parameter = static_cast<int64_t>(
        c10::elementSize(bucket.block >= 0 ? gathered_dtype(bucket, parameters) : first.dtype()));
    const auto others = static_cast<int64_t>(bucket.cuts.size()) - 2;
    const int64_t own = bucket.cuts[rank + 1] - bucket.cuts[rank];

    const bool has_gradients = has_gradient.empty() || has_any_gradient(bucket, has_gradient);
    if (has_gradients) bytes += (each ? rounds : 1) * (bucket.elements() - own) * of_gradient;
    // The last block stays complete from the forward pass to the backward pass.
    const int64_t times = bucket.block < 0 ? 1 : (bucket.block == last_block ? rounds : 2 * rounds);
    // If dist.shard is set, a stage sends only the updates of its own parameters.
    const bool is_sent = shard == "none" ? has_gradients : bucket.owner == world.pipeline().rank;
    if (is_sent) bytes += others * own * (shard == "none" ? of_gradient : of_parameter) * times;
  }
  return bytes;
}

void gather_bucket(World& world, Group& group, const ShardLayout& layout, const Bucket& bucket,
                   const std::function<at::Tensor(size_t)>& own,
                   const std::function<void(size_t, const at::Tensor&)>& put) {
  const MemoryScope memory(Memory::gradients);
  const NoGrad no_grad;
  at::Tensor flat;

  // Copy this rank's elements, which are contiguous in the bucket.
  int64_t at = bucket.cuts[static_cast<size_t>(world.data().rank)];
  for (const size_t i : bucket.parameters) {
    const at::Tensor mine = own(i);
    if (!flat.defined()) flat = at::empty({bucket.elements()}, mine.options());
    flat.narrow(0, at, mine.numel()).copy_(mine);
    at += mine.numel();
  }

  world.guarded([&] { group.all_gather(flat, bucket.cuts); });

  int64_t offset = 0;
  for (const size_t i : bucket.parameters) {
    put(i, flat.narrow(0, offset, layout.elements(i)));
    offset += layout.elements(i);
  }
}

void gather_parameters(World& world, const ShardLayout& layout,
                       std::span<const NamedParameter> parameters, bool blocks_too) {
  if (world.data().size == 1) return;
  const auto flat_data = [&](size_t i) { return parameters[i].parameter.data().view({-1}); };
  for (const Bucket& bucket : layout.buckets()) {
    if (bucket.owner != world.pipeline().rank || (bucket.block >= 0 && !blocks_too)) continue;
    gather_bucket(
        world, world.gradients(), layout, bucket,
        [&](size_t i) {
          const ElementRange range = layout.range(i, world.data().rank);
          return flat_data(i).narrow(0, range.begin, range.size());
        },
        [&](size_t i, const at::Tensor& all) { flat_data(i).copy_(all); });
  }
}

}  // namespace lathe
