#include "dist/parameter_shards.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "autograd/node.h"
#include "autograd/op.h"
#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/storage.h"
#include "dist/group.h"

// OpenMP's function, which affects only the calling thread. It is declared here because clang-tidy
// has no omp.h.
extern "C" void omp_set_num_threads(int threads);

namespace lathe {
namespace {

/// Writes `values` to a tensor whose storage may have been freed. Does not change the tensor's
/// version, since gathering a parameter is not an update of it.
void restore(const at::Tensor& t, const at::Tensor& values) {
  if (t.numel() == 0) return;
  allocate_storage(t);
  if (is_dry_run()) return;
  if (t.is_cpu())
    std::memcpy(t.data_ptr(), values.const_data_ptr(), t.nbytes());
  else
    t.variable_data().copy_(values.view(t.sizes()));  // the alias has its own version counter
}

}  // namespace

ParameterShards::ParameterShards(World& world, std::span<const NamedParameter> parameters,
                                 const ShardLayout& layout)
    : world_(world), parameters_(parameters), layout_(layout) {
  for (const Bucket& bucket : layout.buckets()) {
    if (bucket.block < 0) continue;
    blocks_.insert(bucket.block);
    for (const size_t i : bucket.parameters) {
      if (!owns_memory(parameters[i].parameter.data())) {
        fail(Exit::usage, "dist.shard = \"parameters\": ", parameters[i].path,
             " shares its memory with another tensor, so it can't be freed; set dist.shard = "
             "\"gradients\"");
      }
    }
  }
}

void ParameterShards::shard(size_t i) {
  own_.resize(parameters_.size());
  if (layout_.buckets()[layout_.bucket_of(i)].block < 0) return;
  const NoGrad no_grad;
  const MemoryScope memory(Memory::parameters);
  const Variable& p = parameters_[i].parameter;
  const ElementRange range = layout_.range(i, world_.data().rank);
  own_[i] = p.data().view({-1}).narrow(0, range.begin, range.size()).clone();
  p.leaf().own = {own_[i], range.end};
  free(i);
}

/// Gathers the parameters of a block. If the parameters have working copies, which ops read under
/// autocast, gathers only these copies or, if `for_all_uses` is true, both. The caller adds the
/// block to complete_blocks_.
void ParameterShards::gather(int64_t block, bool for_all_uses) {
  const NoGrad no_grad;
  for (const Bucket& bucket : layout_.buckets()) {
    if (bucket.block != block) continue;
    const bool has_copies =
        parameters_[bucket.parameters.at(0)].parameter.leaf().precision.low.defined();

    if (has_copies) {
      gather_bucket(
          world_, world_.parameters(), layout_, bucket,
          [&](size_t i) {
            return own_[i].to(parameters_[i].parameter.leaf().precision.low.scalar_type());
          },
          [&](size_t i, const at::Tensor& all) {
            Precision& precision = parameters_[i].parameter.leaf().precision;
            restore(precision.low, all);
            precision.mark_low_current(parameters_[i].parameter.data());
          });
    }
    if (!has_copies || for_all_uses) {
      gather_bucket(
          world_, world_.parameters(), layout_, bucket, [&](size_t i) { return own_[i]; },
          [&](size_t i, const at::Tensor& all) { restore(parameters_[i].parameter.data(), all); });
    }
  }
}

/// In a dry run, allocates a buffer as large as the block's largest bucket and keeps it until
/// finish_ahead(). This buffer represents the buffer that the gathering thread of a real run holds
/// while another block computes.
void ParameterShards::hold_largest_bucket(int64_t block) {
  const MemoryScope memory(Memory::gradients);
  int64_t most = 0;
  for (const Bucket& bucket : layout_.buckets()) {
    if (bucket.block != block) continue;
    const auto element = c10::elementSize(gathered_dtype(bucket, parameters_));
    most = std::max(most, bucket.elements() * static_cast<int64_t>(element));
  }
  ahead_buffer_ = at::empty({most}, at::kByte);
}

/// Starts to gather the block that runs next. All ranks do so at the same point, so they call their
/// collectives in the same order. A dry run gathers the block immediately, since it has one thread.
void ParameterShards::gather_ahead(int64_t block) {
  if (complete_blocks_.contains(block)) return;
  prefetched_block_ = block;
  if (is_dry_run()) {
    gather(block, /*for_all_uses=*/false);
    hold_largest_bucket(block);
    return;
  }
  ahead_ = std::async(std::launch::async, [this, block] {
    // Use one core here, because the block that runs needs the other cores. On a GPU, both threads
    // use one stream, so gathering runs between the kernels of blocks and does not overlap with
    // them.
    // The first call of at::get_num_threads() in a thread sets OpenMP's number of threads, so make
    // this call before omp_set_num_threads().
    at::get_num_threads();
    omp_set_num_threads(1);
    gather(block, /*for_all_uses=*/false);
  });
}

/// Waits for the block that is gathered ahead. Throws the errors of gather().
void ParameterShards::finish_ahead() {
  if (prefetched_block_ < 0) return;
  const int64_t block = std::exchange(prefetched_block_, -1);
  if (ahead_.valid()) ahead_.get();
  ahead_buffer_.reset();
  complete_blocks_.insert(block);
}

void ParameterShards::free_block(int64_t block) {
  for (const Bucket& bucket : layout_.buckets()) {
    if (bucket.block != block) continue;
    for (const size_t i : bucket.parameters) free(i);
  }
  complete_blocks_.erase(block);
}

void ParameterShards::free(size_t i) {
  drop_cached_casts(parameters_[i].parameter.leaf());
  free_storage(parameters_[i].parameter.data());
  free_storage(parameters_[i].parameter.leaf().precision.low);
}

void ParameterShards::begin(size_t block, bool is_recomputed) {
  if (!is_sharded() || gathered_ > 0) return;
  const auto number = static_cast<int64_t>(block);
  finish_ahead();
  // By now, the backward pass of the block that was recomputed last has ended.
  if (is_recomputed) free_blocks_except(number);
  const auto place = blocks_.find(number);
  if (place == blocks_.end()) return;
  if (complete_blocks_.insert(number).second) gather(number, /*for_all_uses=*/false);

  const auto next = std::next(place);
  if (is_recomputed && place != blocks_.begin()) gather_ahead(*std::prev(place));
  if (!is_recomputed && next != blocks_.end()) gather_ahead(*next);
}

void ParameterShards::end(size_t block, bool is_recomputed) {
  // A recomputed block still needs its parameters for its backward pass.
  if (!is_sharded() || gathered_ > 0 || is_recomputed) return;
  const auto number = static_cast<int64_t>(block);
  if (blocks_.contains(number) && number != *blocks_.rbegin()) free_block(number);
}

void ParameterShards::free_blocks_except(int64_t block) {
  const std::set<int64_t> here = complete_blocks_;
  for (const int64_t other : here) {
    if (other != block) free_block(other);
  }
}

void ParameterShards::end_step() {
  if (gathered_ > 0) return;
  finish_ahead();
  free_blocks_except(-1);
}

void ParameterShards::publish_update() {
  for (size_t i = 0; i < own_.size(); ++i) {
    if (own_[i].defined()) bump_version(parameters_[i].parameter.data());
  }
  gather_parameters(world_, layout_, parameters_, /*blocks_too=*/!is_sharded());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Variable& p = parameters_[i].parameter;
    if (!is_sharded() || !own_[i].defined()) p.leaf().precision.refresh_low(p.data());
  }
  if (gathered_ == 0) return;
  for (const int64_t block : blocks_) gather(block, /*for_all_uses=*/true);
}

ParameterShards::Gathered::Gathered(ParameterShards* shards)
    : shards_(shards != nullptr && shards->is_sharded() ? shards : nullptr) {
  if (shards_ == nullptr || shards_->gathered_++ > 0) return;
  shards_->finish_ahead();
  for (const int64_t block : shards_->blocks_) shards_->gather(block, /*for_all_uses=*/true);
  shards_->complete_blocks_ = shards_->blocks_;
}

ParameterShards::Gathered::~Gathered() {
  if (shards_ != nullptr && --shards_->gathered_ == 0) shards_->end_step();
}

}  // namespace lathe
