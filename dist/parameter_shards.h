// Shards parameters among ranks (ZeRO 3). Each rank keeps only those elements of a repeated block's
// parameters that it owns. The other elements are gathered before the block runs, in the forward
// pass and in its recomputation, and freed afterwards. While a block runs, a thread gathers the
// parameters of the next block. The parameters of the last block are kept after the forward pass,
// because the backward pass begins with that block.
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

/// The parameters of a model's repeated blocks. Parameters outside of blocks stay complete on each
/// rank.
///
/// A parameter whose storage is freed keeps its sizes; reading it throws. Code that needs complete
/// parameters between steps must hold a Gathered.
class ParameterShards final : public BlockHooks {
 public:
  /// Does not shard anything; shard() does that. `layout` must have been made with blocks_apart.
  /// All arguments must outlive this object. Throws Exit::usage if a parameter of a block shares
  /// its memory with another tensor.
  ParameterShards(World& world, std::span<const NamedParameter> parameters,
                  const ShardLayout& layout);

  /// If parameter i belongs to a block, keeps only the elements that this rank owns and frees its
  /// other elements. The parameter must be complete. Call shard() once for each parameter, before
  /// the first step.
  void shard(size_t i);
  /// Returns, for each parameter, the elements that this rank owns, as a 1-D tensor that the
  /// optimizer updates. A tensor is undefined if its parameter is outside of blocks, and therefore
  /// complete on every rank. Empty before shard().
  std::span<const at::Tensor> own() const { return own_; }
  /// Call this after the optimizer's update. Sends the updated parameters outside of blocks to all
  /// ranks. Parameters of a block are gathered when the block runs next, or now if a Gathered
  /// exists. This call is a collective.
  void publish_update();
  /// Frees the parameters of blocks that are still complete after a backward pass. Does nothing
  /// while a Gathered exists.
  void end_step();

  void begin(size_t block, bool is_recomputed) override;
  void end(size_t block, bool is_recomputed) override;

  /// While this object exists, all parameters are complete. If `shards` is null, this object does
  /// nothing. The constructor is a collective.
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
  std::set<int64_t> blocks_, complete_blocks_;  // all blocks; blocks with complete parameters
  int gathered_ = 0;                            // number of Gathered objects that exist
  int64_t prefetched_block_ = -1;               // the block that `ahead_` gathers; -1: none
  at::Tensor ahead_buffer_;                     // in a dry run, represents the buffer of `ahead_`
  std::future<void> ahead_;  // must be the last member, since its destructor waits
};

}  // namespace lathe
