// Parameters that ranks share out (ZeRO 3): each rank keeps the elements of a block's parameters
// that it owns. The others are collected before the block runs, forward and in its recomputation,
// and freed after it. While a block runs, a thread collects the one that runs next. The last block
// stays between the forward pass and the backward pass, which begins with it.
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
/// A parameter whose storage is freed keeps its sizes; reading it throws. What needs all of them
/// between steps holds a Gathered.
class ParameterShards final : public BlockHooks {
 public:
  /// Nothing is shared out yet. `layout`: with the blocks apart. What is given must outlive it.
  ParameterShards(World& world, std::span<const NamedParameter> parameters,
                  const ShardLayout& layout);

  /// Keeps of parameter i, which is complete, the own elements alone from now on, if it is one of a
  /// block. Call it once for each parameter, before the first step.
  void share_out(size_t i);
  /// Returns this rank's elements of each parameter, 1-D, which the optimizer updates; undefined
  /// for one that is complete here. Empty before share_out().
  std::span<const at::Tensor> own() const { return own_; }
  /// Makes every rank's parameters those that their owners have updated. A collective.
  void publish_update();
  /// Frees what a backward pass has left.
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
  bool is_shared_out() const { return !own_.empty(); }
  void gather(int64_t block, bool for_all_uses);
  void gather_ahead(int64_t block);
  void hold_largest_bucket(int64_t block);
  void finish_ahead();
  void free_block(int64_t block);
  void free(size_t i);
  void free_blocks_but(int64_t block);

  World& world_;
  std::span<const NamedParameter> parameters_;
  const ShardLayout& layout_;
  std::vector<at::Tensor> own_;
  std::set<int64_t> blocks_, here_;  // all of them, and those whose parameters are complete
  int gathered_ = 0;                 // Gathered that are alive
  int64_t ahead_block_ = -1;         // which `ahead_` collects; -1: none
  at::Tensor ahead_buffer_;          // of that block, in a dry run
  std::future<void> ahead_;          // the last member: its destructor waits
};

}  // namespace lathe
