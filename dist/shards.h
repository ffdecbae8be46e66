// Assigns parameters to buckets, and the elements of each bucket to the ranks that own them.
//
// A bucket holds the gradients that are exchanged together. It is cut into one share per rank. Each
// rank adds up its share of the gradients. If dist.shard is set, only the rank that adds up a share
// keeps the optimizer state of that share. A parameter may be cut only at multiples of
// grad_sum_chunk, the number of elements in one partial sum of the gradient norm, so the norm is
// bitwise the same wherever the cuts are. A parameter that its optimizer updates only as a complete
// tensor is never cut. Such parameters are in separate buckets.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autograd/parameter.h"
#include "core/element_range.h"
#include "dist/world.h"

namespace lathe {

/// Parameters that are concatenated in a flat tensor.
struct Bucket {
  std::vector<size_t> parameters;  ///< indices of the parameters
  at::ScalarType dtype;            ///< dtype of the gradients
  at::ScalarType sent;             ///< dtype in which gradients are sent (dist.reduce_dtype)
  /// [ranks + 1]: rank r owns the elements [cuts[r], cuts[r + 1]).
  std::vector<int64_t> cuts{};
  bool is_divisible = true;
  int64_t block = -1;  ///< the repeated block of all these parameters; -1: any block or none
  int owner = 0;       ///< the pipeline stage that updates these parameters

  int64_t elements() const { return cuts.back(); }
};

/// Which stages of a pipeline have a parameter.
struct StagePart {
  int owner = 0;         ///< the stage that updates the parameter
  bool is_tied = false;  ///< whether another stage also uses the parameter
  auto operator<=>(const StagePart&) const = default;
};

/// The buckets of a model's parameters. Every rank makes the same buckets.
class ShardLayout {
 public:
  /// Options for making buckets.
  struct Options {
    int64_t bucket_bytes;                      ///< bytes of gradients in a bucket
    int ranks;                                 ///< number of ranks among which buckets are cut
    bool blocks_apart = false;                 ///< whether no bucket has parameters of two blocks
    at::ScalarType reduce_dtype = at::kFloat;  ///< dtype in which float32 gradients are sent
    /// The StagePart of each parameter; empty unless dist.pipeline is above 1. Parameters of
    /// different parts share no bucket, and each part is divided evenly, so that the ranges of a
    /// tied embedding are the same on both of its stages.
    std::vector<StagePart> parts{};
  };

  /// Assigns the parameters to buckets. `is_divisible[i]`: whether parameter i may be cut.
  ShardLayout(std::span<const NamedParameter> parameters, const std::vector<bool>& is_divisible,
              const Options& options);

  /// Returns the buckets in about the order in which a backward pass completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }
  /// Returns the number of elements of a parameter.
  int64_t elements(size_t parameter) const { return sizes_[parameter]; }
  /// Returns the elements of a parameter that a rank owns.
  ElementRange range(size_t parameter, int rank) const;
  /// Returns range(i, rank) for every parameter i.
  std::vector<ElementRange> ranges(int rank) const;
  /// Returns the rank that owns the largest part of the elements that a stage of a pipeline
  /// updates; 0 if that rank owns less than 1% more than rank 0.
  int largest_owner(int stage) const;

 private:
  void fill_buckets(std::span<const NamedParameter> parameters,
                    const std::vector<bool>& is_divisible, const Options& options);
  void cut(Bucket& bucket, std::vector<int64_t>& loads);
  void assign_whole(Bucket& bucket, std::span<const int64_t> whole, std::vector<int64_t>& loads);

  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<int64_t> sizes_,
      offsets_;  // for each parameter: number of elements, and offset in its bucket
};

/// Returns whether gradients are exchanged after every micro-batch, which dist.shard = "gradients"
/// and "parameters" ask for. Returns false if there is one data rank. Also returns false if the
/// number of data ranks is not a power of two, or if there are several context ranks: adding up
/// over the ranks first would then differ from the order of core/tree_sum.h, so gradients are
/// exchanged after the last micro-batch.
bool exchanges_every_micro_batch(const World& world, const std::string& shard);

/// Returns the dtype in which the parameters of a block's bucket are gathered: the dtype of their
/// working copies, if there are any, otherwise the dtype of the parameters.
at::ScalarType gathered_dtype(const Bucket& bucket, std::span<const NamedParameter> parameters);

/// Returns whether any parameter of the bucket has a gradient. `has_gradient[i]`: whether parameter
/// i has one.
bool has_any_gradient(const Bucket& bucket, const std::vector<char>& has_gradient);

/// Returns how many bytes of gradients and parameters a data rank sends in a step of `rounds`
/// micro-batches. `has_gradient[i]`: whether parameter i had a gradient in the previous step; if
/// the vector is empty, all parameters count as having one. `shard`: the value of dist.shard. The
/// data rank sends to every other rank the share of the gradients that this other rank adds up,
/// after each micro-batch if exchanges_every_micro_batch() is true, and otherwise once. Then the
/// data rank sends its own share of the sums, or of the updated parameters if only the owner has
/// the sums. Sharded parameters of blocks are sent before each forward pass and, except for the
/// last block, again before each backward pass.
int64_t bytes_sent_in_step(const World& world, int data_rank, const ShardLayout& layout,
                           std::span<const NamedParameter> parameters,
                           const std::vector<char>& has_gradient, const std::string& shard,
                           int64_t rounds);

/// Gathers one tensor for each parameter of a bucket. Each rank begins with the elements that it
/// owns. `own(i)` returns this rank's elements of the tensor of parameter i, 1-D and of one dtype;
/// `put(i, all)` receives all elements, 1-D, in memory that is reused after `put` returns. This
/// call is a collective of `group`.
void gather_bucket(World& world, Group& group, const ShardLayout& layout, const Bucket& bucket,
                   const std::function<at::Tensor(size_t)>& own,
                   const std::function<void(size_t, const at::Tensor&)>& put);
/// Gives every data rank all elements of the parameters that this stage updates, after each rank
/// has updated the elements that it owns. If `blocks_too` is false, leaves out the parameters of
/// blocks. This call is a collective of the data ranks; it does nothing if there is only one data
/// rank.
void gather_parameters(World& world, const ShardLayout& layout,
                       std::span<const NamedParameter> parameters, bool blocks_too = true);

}  // namespace lathe
