// Parameters that are sharded among ranks (ZeRO 3). Of the parameters of a repeated block, each
// rank keeps only the elements that it owns. The other elements are gathered before the block runs,
// in the forward pass and in its recomputation, and freed afterwards. While a block runs, a thread
// gathers the parameters of the next block. Those of the last block are kept after the forward
// pass, because the backward pass begins with that block.
#pragma once

#include <ATen/core/Tensor.h>

#include <future>
#include <set>
#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/mode.h"
#include "dist/shards.h"
#include "dist/world.h"

namespace lathe {

/// The parameters of a model's repeated blocks. Those outside of blocks stay complete on each rank.
///
/// A parameter whose storage is freed keeps its sizes; reading it throws. Code that needs complete
/// parameters between steps must hold a Gathered.
class ParameterShards final : public BlockHooks {
 public:
  /// Does not shard anything yet; see shard(). `layout` must have been made with blocks_apart.
  /// All arguments must outlive this object. Throws Exit::usage if a parameter of a block shares
  /// its memory with another tensor.
  ParameterShards(World& world, std::span<const NamedParameter> parameters,
                  const ShardLayout& layout);

  /// If parameter i belongs to a block, keeps only the elements that this rank owns and frees the
  /// others. The parameter must be complete. Call this once for each parameter, before the first
  /// step.
  void shard(size_t i);
  /// Returns the elements that this rank owns of each parameter, as 1-D tensors that the optimizer
  /// updates. A tensor is undefined if its parameter is outside of blocks, and therefore complete
  /// on every rank. Empty before shard().
  std::span<const at::Tensor> own() const { return own_; }
  /// Call this after the optimizer's update. Sends the updated parameters outside of blocks to all
  /// ranks. Parameters of a block are gathered when the block runs next, or now if a Gathered is
  /// alive. A collective.
  void publish_update();
  /// Frees the parameters of blocks that are still complete after a backward pass. Does nothing
  /// while a Gathered is alive.
  void end_step();

  void begin(size_t block, bool is_recomputed) override;
  void end(size_t block, bool is_recomputed) override;

  /// While alive, all parameters are complete. `shards` may be null. A collective.
  class Gathered {
   public:
    explicit Gathered(ParameterShards* shards);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    ParameterShards* shards_;
  };

 private:
  bool is_sharded() const { return !own_.empty(); }
  void gather(int64_t block, bool for_all_uses);
  void gather_ahead(int64_t block);
  void hold_largest_bucket(int64_t block);
  void finish_ahead();
  void free_block(int64_t block);
  void free(size_t i);
  void free_blocks_except(int64_t block);

  World& world_;
  std::span<const NamedParameter> parameters_;
  const ShardLayout& layout_;
  std::vector<at::Tensor> own_;
  std::set<int64_t> blocks_, complete_blocks_;  // all blocks; those with complete parameters
  int gathered_ = 0;                            // number of Gathered objects that are alive
  int64_t prefetched_block_ = -1;               // the block that `ahead_` gathers; -1: none
  at::Tensor ahead_buffer_;                     // in a dry run, stands for the buffer of `ahead_`
  std::future<void> ahead_;                     // the last member: its destructor waits
};

}  // namespace lathe
