// Assigns parameters to buckets, and the elements of each bucket to the ranks that own them.
//
// A bucket holds the gradients that are exchanged together. It is cut into one share per rank. Each
// rank adds up its share of the gradients. If dist.shard is set, only the rank that adds up a share
// keeps its optimizer state. A parameter may be cut only at multiples of grad_sum_chunk, the number
// of elements in one partial sum of the gradient norm, so the norm has the same bits wherever the
// cuts are. Parameters that their optimizer updates as whole tensors are never cut; they have
// buckets of their own.
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
  std::vector<size_t> parameters;
  at::ScalarType dtype;  ///< of the gradients
  at::ScalarType sent;   ///< dtype in which gradients are sent (dist.reduce_dtype)
  /// [ranks + 1]: rank r owns the elements [cuts[r], cuts[r + 1]).
  std::vector<int64_t> cuts{};
  bool is_divisible = true;
  int64_t block = -1;  ///< the repeated block of all its parameters; -1: any or none
  int owner = 0;       ///< the pipeline stage that updates its parameters

  int64_t elements() const { return cuts.back(); }
};

/// Which stages of a pipeline have a parameter.
struct StagePart {
  int owner = 0;         ///< the stage that updates it
  bool is_tied = false;  ///< another stage uses it too
  auto operator<=>(const StagePart&) const = default;
};

/// The buckets of a model's parameters. Every rank makes the same buckets.
class ShardLayout {
 public:
  /// Options for making buckets.
  struct Options {
    int64_t bucket_bytes;                      ///< of gradients in a bucket
    int ranks;                                 ///< among which buckets are cut
    bool blocks_apart = false;                 ///< whether no bucket has parameters of two blocks
    at::ScalarType reduce_dtype = at::kFloat;  ///< in which float32 gradients are sent
    /// With dist.pipeline, the part of each parameter; empty without it. Parameters of different
    /// parts share no bucket, and each part is divided evenly, so that the ranges of a tied
    /// embedding are the same on both of its stages.
    std::vector<StagePart> parts{};
  };

  /// `is_divisible[i]`: whether parameter i may be cut.
  ShardLayout(std::span<const NamedParameter> parameters, const std::vector<bool>& is_divisible,
              const Options& options);

  /// Returns the buckets in about the order in which a backward pass completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }
  /// Returns the number of elements of a parameter.
  int64_t elements(size_t parameter) const { return sizes_[parameter]; }
  /// Returns the elements of a parameter that a rank owns.
  ElementRange range(size_t parameter, int rank) const;
  /// Returns the same for all parameters.
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
      offsets_;  // of each parameter: elements, and its offset in its bucket
};

/// Returns whether gradients are exchanged after every micro-batch, which dist.shard = "gradients"
/// and "parameters" ask for. It is false if the number of data ranks is not a power of two, or with
/// context ranks: adding up over the ranks first would then not be the order of core/tree_sum.h, so
/// gradients are exchanged after the last micro-batch.
bool exchanges_every_micro_batch(const World& world, const std::string& shard);

/// Returns the dtype in which the parameters of a bucket of a block are gathered: that of their
/// working copies if they have any.
at::ScalarType gathered_dtype(const Bucket& bucket, std::span<const NamedParameter> parameters);

/// Returns whether any parameter of the bucket has a gradient. `has_gradient[i]`: whether parameter
/// i has one.
bool has_any_gradient(const Bucket& bucket, const std::vector<char>& has_gradient);

/// Returns the bytes of gradients and parameters that a data rank sends in a step of `rounds`
/// micro-batches. `has_gradient`: as for has_any_gradient(), in the previous step; if it is empty,
/// all parameters have one. `shard`: the value of dist.shard. Each rank sends every other rank its
/// share of the gradients, after each micro-batch if exchanges_every_micro_batch(). Then it sends
/// its own share of the sums, or of the updated parameters if only the owner has the sums. Sharded
/// parameters of blocks are sent before each forward pass and, except those of the last block,
/// again before each backward pass.
int64_t bytes_sent_in_step(const World& world, int data_rank, const ShardLayout& layout,
                           std::span<const NamedParameter> parameters,
                           const std::vector<char>& has_gradient, const std::string& shard,
                           int64_t rounds);

/// Gathers one tensor for each parameter of a bucket. Each rank begins with the elements that it
/// owns. `own(i)` returns this rank's elements of the tensor of parameter i, 1-D and of one dtype;
/// `put(i, all)` receives all elements, 1-D, in memory that is reused after `put` returns. A
/// collective of `group`.
void gather_bucket(World& world, Group& group, const ShardLayout& layout, const Bucket& bucket,
                   const std::function<at::Tensor(size_t)>& own,
                   const std::function<void(size_t, const at::Tensor&)>& put);
/// Gives every data rank all elements of the parameters that this stage updates, after each rank
/// has updated those that it owns. Without `blocks_too`, leaves out the parameters of blocks. A
/// collective of the data ranks; does nothing if there is only one.
void gather_parameters(World& world, const ShardLayout& layout,
                       std::span<const NamedParameter> parameters, bool blocks_too = true);

}  // namespace lathe
