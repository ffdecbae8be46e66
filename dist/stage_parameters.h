// Divides parameters among the stages of a pipeline (Huang et al. 2019, "GPipe"; Narayanan et al.
// 2021, "Efficient large-scale language model training on GPU clusters"). A stage is a position on
// the pipeline axis of dist/world.h. It runs some consecutive blocks of the model or, with
// dist.virtual_stages, several such parts: part p belongs to stage p % stages. Only that stage
// keeps the parameters of these blocks and their optimizer state. The first stage has the
// parameters that the model names before its blocks, and the last stage has all other parameters
// outside of blocks. An embedding that is tied to the head is on both of these stages; the first
// stage adds up the gradients of the embedding and updates it. With dist.shard, the data ranks of a
// stage divide that stage's updates among themselves (dist/shards.h).
//
// Every stage runs the computations before the blocks, and every stage but the first drops the
// results. On these other stages, the parameters of the first stage read as zeros and take no
// memory on CPUs; on GPUs they keep their initial values.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/element_range.h"
#include "dist/shards.h"
#include "dist/world.h"

namespace lathe {

/// Returns cuts [parts + 1] that minimize the cost of the most expensive part. Part p has the
/// blocks [cuts[p], cuts[p + 1]), at least one. `costs`: the cost of each block; `after`: the cost
/// of the layers after the blocks, which belong to the last part. There must be at least as many
/// blocks as parts.
std::vector<int64_t> cut_into_stages(std::span<const double> costs, double after, int parts);

/// Holds the parameters that this stage trains. Code that needs the parameters of all stages must
/// hold a Gathered.
///
/// A parameter of another stage's block has its sizes but no memory; reading it throws.
class StageParameters {
 public:
  /// Begins with complete parameters, which must outlive this object. `cuts`: as cut_into_stages()
  /// returns them, with the same number of parts for each stage. `head`: the weight of the model's
  /// head; null if the model has no head. Throws Exit::usage if a parameter that only other stages
  /// use shares its memory with another tensor.
  StageParameters(World& world, std::vector<NamedParameter> parameters, std::vector<int64_t> cuts,
                  const Leaf* head = nullptr);

  /// Returns how many parts of the blocks each stage has (dist.virtual_stages).
  int parts() const { return static_cast<int>(cuts_.size() - 1) / stages_.size; }
  /// Returns the blocks [begin, end) of a part of this stage. `part` counts this stage's parts from
  /// 0.
  ElementRange blocks(int part) const;
  /// Returns the number of blocks of all stages.
  int64_t all_blocks() const { return cuts_.back(); }
  /// Returns the part of this stage whose backward pass gives local() parameter i its gradient.
  int part_of_local(size_t i) const;
  /// Returns the parameters that this stage has gradients of.
  std::span<const NamedParameter> local() const { return local_; }
  /// Returns the index, among all parameters, of local()[i].
  size_t index_of_local(size_t i) const { return index_of_local_[i]; }
  /// Returns, for each parameter of local(), which stages have it.
  std::vector<StagePart> parts_of_local() const;
  /// Divides the parameters that this stage updates among its data ranks. `shares`: for each
  /// parameter of local(), the elements of this process. Call it at most once, before
  /// owned_ranges().
  void divide(std::span<const ElementRange> shares);
  /// Returns for each parameter the elements that this process updates.
  const std::vector<ElementRange>& owned_ranges() const { return owned_; }

  /// Returns whether this process needs the values of a parameter: false for parameters that
  /// free_foreign_parameters() frees, and true for all other parameters, even if this object was
  /// not made with them.
  bool needs(const Leaf* parameter) const;
  /// Frees the parameters that this stage does not use; on GPUs, frees only parameters of blocks.
  /// The memory of a parameter may have been freed already (core/storage.h). Call it once, before
  /// the first step.
  void free_foreign_parameters();
  /// Adds up the gradients that several stages have of a parameter, on the stage that owns the
  /// parameter. Returns, for each parameter, its gradient as a 1-D tensor. The tensor has no
  /// elements if another stage owns the parameter, and is undefined if no stage has a gradient.
  /// `shares`: for each parameter of local(), the 1-D gradient of this process's share, or an
  /// undefined tensor if there is none. If `shares` is empty, the gradients are on the parameters.
  /// Throws Exit::usage if this stage has a gradient of a parameter that only other stages use.
  /// This call is a collective of the stages.
  std::vector<at::Tensor> sum_gradients(std::vector<at::Tensor> shares = {});
  /// Sends a tied embedding, which the first stage has updated, to the last stage; while a Gathered
  /// exists, sends all parameters to all stages. This call is a collective of the stages.
  void publish_update();

  /// While this object exists, all parameters are complete. If `stage` is null, this object does
  /// nothing. The constructor is a collective of the stages.
  class Gathered {
   public:
    explicit Gathered(StageParameters* stage);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    StageParameters* stage_;
  };

 private:
  int64_t part_of_block(int64_t block) const;
  bool is_tied(size_t i) const;
  bool is_foreign(size_t i) const;
  bool is_freed(size_t i) const;
  std::vector<int64_t> cuts_of(size_t i) const;
  std::vector<uint8_t> stages_with_gradients(const std::vector<at::Tensor>& own) const;
  at::Tensor summed(size_t i, const at::Tensor& own, const uint8_t* has_gradient);
  void publish(size_t i);
  void publish_to_last(size_t i);
  void mark_updated(size_t i);
  void free_foreign();
  void check_foreign() const;

  World& world_;
  RankAxis stages_;
  std::vector<NamedParameter> parameters_, local_;
  std::vector<size_t> index_of_local_;
  std::vector<ElementRange> owned_;
  std::vector<int64_t> cuts_;
  const Leaf* head_;
  std::vector<int> owner_;  // the stage that updates each parameter
  bool has_freed_ = false;
  int gathered_ = 0;  // number of Gathered objects that exist
};

}  // namespace lathe
